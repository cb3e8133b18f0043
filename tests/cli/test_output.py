"""Where the report goes and how it is drawn there: colours, width, characters, files."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from oomdoc.cli import output
from oomdoc.cli.format import Format

Run = Callable[..., subprocess.CompletedProcess[str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (Terminal(), {"TERM": "xterm"}, "256"),
        (Terminal(), {"TERM": "xterm", "COLORTERM": "truecolor"}, "truecolor"),
        (Terminal(), {"TERM": "dumb"}, None),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, None),
        (io.StringIO(), {"TERM": "xterm"}, None),
        (io.StringIO(), {"TERM": "xterm", "FORCE_COLOR": "1"}, "256"),
        (None, {"FORCE_COLOR": "1"}, None),
    ],
)
def test_colours(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None, environment: dict[str, str], expected: str | None
) -> None:
    """Only where they are seen and not unwanted; a file never has any."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert output.colors(stream) == expected


def test_a_report_in_a_file(oomdoc: Run, tmp_path: Path, shared: Path) -> None:
    """--output writes it there, says so on stderr, and leaves stdout empty."""
    small = shared / "data" / "snapshots" / "state-only-tiny.pickle"
    done = oomdoc("analyze", "--output", "one.txt", small)
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote one.txt" in done.stderr
    assert "Memory at the peak" in (tmp_path / "one.txt").read_text()


def test_a_file_that_cannot_be_written(oomdoc: Run, tmp_path: Path, shared: Path) -> None:
    """Usage, in one line."""
    (tmp_path / "file").write_text("")
    small = shared / "data" / "snapshots" / "state-only-tiny.pickle"
    done = oomdoc("analyze", "--output", "file/one.txt", small)
    assert done.returncode == 2
    assert "cannot write file/one.txt" in done.stderr


def test_a_folder_that_is_not_there_is_not_made(oomdoc: Run, tmp_path: Path) -> None:
    """Said before the script runs, in one line."""
    (tmp_path / "train.py").write_text("print('ran')\n")
    done = oomdoc("run", "--gpu", "t4", "--output", "nope/x.txt", "train.py")
    assert done.returncode == 2
    assert done.stderr == "oomdoc: cannot write nope/x.txt: there is no directory nope\n"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("columns", ["60", "200"])
def test_the_width_is_that_of_the_terminal(oomdoc: Run, shared: Path, columns: str) -> None:
    """COLUMNS tells it, as everywhere."""
    small = shared / "data" / "snapshots" / "state-only-tiny.pickle"
    lines = oomdoc("analyze", small, COLUMNS=columns).stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("$ ")) == int(columns)


def test_a_terminal_without_utf8(oomdoc: Run, shared: Path) -> None:
    """Everything is drawn in ASCII."""
    small = shared / "data" / "snapshots" / "state-only-tiny.pickle"
    done = oomdoc("analyze", small, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "#####" in done.stdout


def test_a_machine_reads_stdout_alone(tmp_path: Path) -> None:
    """While a script runs, what it prints goes to stderr, and comes back to stdout afterwards."""
    code = (
        "import os, pathlib\n"
        "from oomdoc.cli.output import script_output, muted\n"
        "from oomdoc.cli.format import Format\n"
        "with script_output(Format.JSON, None):\n    os.system('echo script')\n"
        "with script_output(Format.TERMINAL, None):\n    os.system('echo shown')\n"
        "with muted(pathlib.Path('log')) as stream:\n"
        "    os.system('echo proof; echo trouble >&2'); stream.write('progress')\n"
        "print('report')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "shown\nreport\n"
    assert done.stderr == "script\nprogress"
    assert (tmp_path / "log").read_text() == "proof\ntrouble\n"


def test_formats_are_those_that_are_drawn() -> None:
    """Every choice of --format has its renderer."""
    from oomdoc.reports.all_formats import RENDERERS

    assert set(RENDERERS) == {each.value for each in Format}
