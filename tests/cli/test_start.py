"""How `oomdoc` starts: help for every command, versions, and nothing heavy imported on the way."""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from oomdoc import __version__
from oomdoc.cli import direct

COMMANDS = ["run", "analyze", "plan", "fix", "gate", "diff", "replay", "explain", "doctor"]

# Runs the command line and prints which of the heavy packages it has imported.
IMPORTS = """
import sys
from oomdoc.cli.main import main
sys.argv = ["oomdoc", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
finally:
    sys.stderr.write("imported:" + ",".join(sorted({"torch", "transformers", "accelerate"} & set(sys.modules))))
"""


def test_version(oomdoc: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """One line, on stdout."""
    done = oomdoc("--version")
    assert (done.returncode, done.stdout) == (0, f"oomdoc {__version__}\n")


def test_help_names_every_command(oomdoc: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """And says what each exit status means."""
    done = oomdoc("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout
    assert "Exit status: 0 fine; 1 out of memory" in " ".join(done.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_examples(
    oomdoc: Callable[..., subprocess.CompletedProcess[str]], command: str
) -> None:
    """What to type is part of the help."""
    done = oomdoc(command, "--help")
    assert done.returncode == 0
    assert f"oomdoc {command}" in done.stdout
    assert "Examples:" in done.stdout


def imported(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stderr.rpartition("imported:")[2]


def test_the_import_check_can_fail() -> None:
    """It does see torch where torch is imported."""
    code = "import torch\n" + IMPORTS
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert "torch" in done.stderr.rpartition("imported:")[2]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["explain"], ["explain", "OOM001"], ["doctor"]],
    ids=" ".join,
)
def test_torch_is_not_imported_to_talk(arguments: list[str]) -> None:
    """Help, pages and the doctor need no torch."""
    assert imported(*arguments) == ""


@pytest.mark.parametrize("command", ["analyze", "plan", "gate --budget 1GiB", "replay"])
def test_torch_is_not_imported_to_read_a_snapshot(shared: Path, command: str) -> None:
    """A laptop without torch reads a recording."""
    small = shared / "data" / "snapshots" / "kv-quant-one-event.pickle"
    assert imported(*command.split(), small) == ""


@pytest.mark.parametrize(
    "arguments",
    [["a.pickle"], ["a.pickle", "b.pickle"], [], ["--format", "json", "a.pickle"], ["a.pickle", "-f", "svg"]],
    ids=" ".join,
)
def test_a_plain_command_line_is_read_as_typer_reads_it(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The way around the command-line library gives the analysis the same targets and format."""
    from oomdoc.cli import analysis
    from oomdoc.cli.app import app

    seen = []

    def note(targets: list[str], gpu=None, capacity=None, form=direct.Format.TERMINAL, output=None) -> int:
        seen.append((targets, gpu, capacity, form, output))
        return 0

    monkeypatch.setattr(analysis, "report_files", note)
    app(["analyze", *arguments], standalone_mode=False)
    request = direct.parse(["analyze", *arguments])
    assert request is not None
    assert direct.run(request) == 0
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "plan a.pickle",
        "analyze --help",
        "analyze a.pickle --gpu h100-80gb",
        "analyze a.pickle --format",
        "analyze a.pickle --format yaml",
        "analyze --format=json a.pickle",
        "analyze -f json -f svg a.pickle",
        "analyze -- a.pickle",
    ],
)
def test_every_other_command_line_is_left_to_typer(line: str) -> None:
    """Wrong usage too, so that there is one place that explains it."""
    assert direct.parse(line.split()) is None


# What a start cannot do without: the command line, columns, the terminal, the thresholds.
NEEDED = "import typer, typer.main, numpy, rich.console, rich.table, rich.text, yaml"


def processor_seconds(*commands: list[str]) -> list[float]:
    """Of each command's cheapest run, taken in turns: the machine may be busy, the program is not."""
    seconds = [[] for _ in commands]
    for _ in range(6):
        for command, spent in zip(commands, seconds, strict=True):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *command], capture_output=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [min(spent) for spent in seconds]


def test_help_starts_fast() -> None:
    """A person waits for it: little more than importing its own dependencies takes."""
    shown, needed = processor_seconds(["-m", "oomdoc", "--help"], ["-c", NEEDED])
    assert shown <= 1.25 * needed


def test_a_small_snapshot_is_analyzed_fast(shared: Path) -> None:
    """70 KB: the start is the whole time, and much of it is spent in other people's imports."""
    small = shared / "data" / "snapshots" / "kv-quant-one-event.pickle"
    shown, needed = processor_seconds(["-m", "oomdoc", "analyze", str(small)], ["-c", NEEDED])
    assert shown <= 3 * needed
