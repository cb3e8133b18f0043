"""How much the command line says, and what the shell completes."""

import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
MIB = 2**20


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Twelve blocks of twelve lines of code: more than a table shows."""
    segments, events = [], []
    for number in range(12):
        size, address = (number + 1) * 2 * MIB, (number + 1) << 30
        frames = [{"filename": "train.py", "line": 10 + number, "name": "forward"}]
        block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated",
                 "frames": frames}  # fmt: skip
        segments.append({"device": 0, "address": address, "total_size": size, "allocated_size": size,
                         "active_size": size, "requested_size": size, "stream": 0, "segment_type": "large",
                         "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
                         "blocks": [block]})  # fmt: skip
        event = {"addr": address, "size": size, "stream": 0, "time_us": number, "frames": frames}
        events += [{"action": "segment_alloc", **event}, {"action": "alloc", **event}]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [events]}, protocol=4))
    return path


def test_verbose_shows_every_row(oomdoc: Run, snapshot: Path) -> None:
    """Which otherwise are summed; the table says that there are more."""
    shown = oomdoc("analyze", snapshot).stdout
    assert "train.py:10 in forward" not in shown
    assert "4 more" in shown
    full = oomdoc("analyze", "--verbose", snapshot).stdout
    assert all(f"train.py:{line} in forward" in full for line in range(10, 22))
    assert "more" not in full.partition("Held by")[2].partition("Causes")[0]


def test_quiet_says_what_is_wrong_only(oomdoc: Run, snapshot: Path) -> None:
    """Notes go; errors and the report stay."""
    assert oomdoc("analyze", "--output", "a.txt", snapshot).stderr == "oomdoc: wrote a.txt\n"
    assert oomdoc("analyze", "--quiet", "--output", "a.txt", snapshot).stderr == ""
    done = oomdoc("analyze", "-q", "none.pickle")
    assert done.returncode == 3
    assert done.stderr.startswith("oomdoc: there is no file or directory none.pickle")
    assert oomdoc("analyze", "-q", snapshot).stdout == oomdoc("analyze", snapshot).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["oomdoc", "an"], {"analyze"}),
        (["oomdoc", "analyze", "--gpu", "h100-n"], {"h100-nvl"}),
        (["oomdoc", "analyze", "--format", "gi"], {"github", "gitlab"}),
        (["oomdoc", "gate", "--upd"], {"--update"}),
    ],
)
def test_the_shell_completes(oomdoc: Run, words: list[str], expected: set[str]) -> None:
    """As the script that --install-completion installs asks for it; the way around typer does not get in its way."""
    done = oomdoc(_OOMDOC_COMPLETE="complete_bash", COMP_WORDS=" ".join(words), COMP_CWORD=str(len(words) - 1))
    assert set(done.stdout.split()) == expected


def test_completion_is_installed_where_the_shell_reads_it(oomdoc: Run, tmp_path: Path) -> None:
    """In the user's own folder. The shell is named, for none need be seen from here."""
    named = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = oomdoc("--install-completion", "bash", **named)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / ".bash_completions" / "oomdoc.sh").read_text()
    assert "_OOMDOC_COMPLETE=complete_bash" in written
    assert str(tmp_path / ".bash_completions" / "oomdoc.sh") in (tmp_path / ".bashrc").read_text()
