"""What goes wrong is told in one line on stderr, with the exit status that README promises, and nothing is executed."""

import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


class Hostile:
    """A pickle that runs a command when it is loaded by pickle.load."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def broken_files(folder: Path) -> dict[str, Path]:
    """Files that are no snapshot, each for another reason."""
    good = pickle.dumps({"segments": [], "device_traces": [[]]}, protocol=4)
    contents = {
        "empty": b"",
        "text": b"Traceback (most recent call last):\n  nothing to see\n",
        "binary": bytes(range(256)) * 16,
        "truncated": pickle.dumps({"segments": [{"address": 1}] * 100, "device_traces": [[]]}, protocol=4)[:-400],
        "other-pickle": pickle.dumps([1, 2, 3]),
        "hostile": pickle.dumps(Hostile(folder / "executed"), protocol=4),
        "hidden": pickle.dumps({"segments": [Hostile(folder / "executed")], "device_traces": [[]]}, protocol=4),
        "trailing": good[:-1],
    }
    for name, content in contents.items():
        (folder / f"{name}.pickle").write_bytes(content)
    return {name: folder / f"{name}.pickle" for name in contents}


@pytest.mark.parametrize(
    "name", ["empty", "text", "binary", "truncated", "other-pickle", "hostile", "hidden", "trailing"]
)
@pytest.mark.parametrize("command", ["analyze", "plan", "gate --budget 1GiB", "replay"])
def test_what_is_no_snapshot_is_refused(oomdoc: Run, tmp_path: Path, name: str, command: str) -> None:
    """Exit status 3 and one clear line, whatever the command; a pickle that names a global runs nothing."""
    file = broken_files(tmp_path)[name]
    done = oomdoc(*command.split(), file)
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("oomdoc: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "executed").exists()


def test_the_hostile_pickle_does_run_elsewhere(tmp_path: Path) -> None:
    """The test above can fail: pickle.load would have executed it."""
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Hostile(marker)))  # noqa: S301 - made two lines above
    assert marker.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["analyze", "nowhere.pickle"], 3, "there is no file or directory nowhere.pickle"),
        (["analyze"], 3, "nothing has been recorded here yet: oomdoc run train.py"),
        (["run", "nowhere.py"], 2, "there is no file nowhere.py"),
        (["run", "--gpu", "A100", "x.py"], 2, "choose a100-40gb, a100-80gb or a100-80gb-pcie"),
        (["run", "--rank", "2", "--nproc-per-node", "2", "x.py"], 2, "--rank 2 does not exist among 2 ranks"),
        (["run", "--real", "x.py"], 2, "--real needs a CUDA device"),
        (["gate", "x.pickle"], 2, "a gate needs a limit: --budget 30GiB"),
        (["gate", "--budget", "lots", "x.pickle"], 2, "'lots' is not a size"),
        (["gate", "x.pickle", "--budget", "1GiB"], 2, "write --budget before x.pickle"),
        (["plan", "x.pickle", "--capacity", "1GiB"], 2, "write --capacity before x.pickle"),
        (["run", "--gpu", "a100-40gb", "--capacity", "0", "x.py"], 2, "a card of 0 can hold nothing"),
        (["explain", "OOM999"], 2, "there is no page 'OOM999'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_answered_with_what_to_do(
    oomdoc: Run, tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    """One line, no traceback, the status of its kind."""
    (tmp_path / "x.py").write_text("")
    (tmp_path / "x.pickle").write_bytes(b"")
    done = oomdoc(*arguments)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["plan", "fix", "gate --budget 1GiB"])
def test_a_snapshot_without_a_device_is_no_fault(oomdoc: Run, tmp_path: Path, command: str) -> None:
    """What a job that never touched the GPU leaves: one line, and no traceback."""
    (tmp_path / "none.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []}, protocol=4))
    done = oomdoc(*command.split(), "none.pickle")
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1


def test_an_option_that_does_not_exist_is_usage(oomdoc: Run) -> None:
    """Typer's own answer, status 2."""
    done = oomdoc("analyze", "--colour", "x.pickle")
    assert done.returncode == 2
    assert "--colour" in done.stderr


def test_a_fault_of_oomdoc_can_be_pasted(oomdoc: Run, tmp_path: Path) -> None:
    """Status 4, versions, the command and the traceback: a renderer that breaks is the fault here."""
    (tmp_path / "sitecustomize.py").write_text("import oomdoc.cli.explain as e\ne._draw = lambda page: 1 / 0\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = oomdoc("explain", "OOM004", PYTHONPATH=path)
    assert done.returncode == 4
    assert "a fault of oomdoc itself" in done.stderr
    assert "$ oomdoc explain OOM004" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """`oomdoc explain | head -1` ends quietly."""
    command = "set -o pipefail; oomdoc_python -m oomdoc explain | head -1"
    import sys

    done = subprocess.run(
        ["bash", "-c", command.replace("oomdoc_python", sys.executable)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "Causes\n"
    assert "Error" not in done.stderr
