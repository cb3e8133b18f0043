"""oomdoc.toml: what it means, and that nothing in it is silently ignored."""

from pathlib import Path

import pytest
from oomdoc.errors import OomdocError
from oomdoc.gates.interface import Amount, Metric
from oomdoc.gates.settings import find, parse_amount, read

FILE = """
[gate]
growth = "2%"
metric = "reserved"

[gate.jobs.train]
script = "train.py"
args = ["--batch-size", 8]
gpu = ["a100-40gb", "h100-80gb"]
nproc-per-node = [1, 8]
budget = "36GiB"

[gate.jobs.eval]
script = "eval.py"
gpu = "t4"
growth = "64MiB"
"""


def written(folder: Path, text: str, name: str = "oomdoc.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_lists_make_a_matrix_and_defaults_hold_for_every_job(tmp_path: Path) -> None:
    """A job of its own overrides them."""
    settings = read(written(tmp_path, FILE))
    assert [job.name for job in settings.jobs] == [
        "train[a100-40gb,1]",
        "train[a100-40gb,8]",
        "train[h100-80gb,1]",
        "train[h100-80gb,8]",
        "eval",
    ]
    first, last = settings.jobs[0], settings.jobs[-1]
    assert (first.args, first.limits.budget_bytes) == (("--batch-size", "8"), 36 << 30)
    assert first.limits.growth == Amount(share=0.02)
    assert last.limits.growth == Amount(bytes=64 << 20)
    assert {job.limits.metric for job in settings.jobs} == {Metric.RESERVED}
    assert settings.baseline == tmp_path / "oomdoc-baseline.json"


def test_pyproject_serves_as_well(tmp_path: Path) -> None:
    """Only where it has our section; a file of our own comes first."""
    assert find(tmp_path) is None
    project = written(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    assert find(tmp_path) is None
    section = FILE.replace("[gate", "[tool.oomdoc.gate")
    written(tmp_path, section, "pyproject.toml")
    assert find(tmp_path) == project
    assert len(read(project).jobs) == 5
    assert find(written(tmp_path, FILE).parent) == tmp_path / "oomdoc.toml"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[gate]\ngrowht = '2%'\n[gate.jobs.a]\nscript = 'a.py'", "no key 'growht'; did you mean growth?"),
        ("[gates]", "no key 'gates'; did you mean gate?"),
        ("[gate]\ngrowth = '2%'", "names no job"),
        ("[gate.jobs.a]\nbudget = '1GiB'", "needs either script or snapshots"),
        ("[gate.jobs.a]\nscript = 'a.py'\nbudget = '1 lot'", "'1 lot' is not a size"),
        ("[gate.jobs.a]\nscript = 'a.py'\ngrowth = '-1%'", "is no percentage"),
        ("[gate.jobs.a]\nscript = 'a.py'\ngpu = []", "gpu is an empty list"),
        ("[gate.jobs.a]\nscript = 'a.py'\nnnodes = 0", "nnodes is a number from 1 on"),
        ("[gate.jobs.a]\nscript = 'a.py'\nargs = '--x'", "args is a list"),
        ("[gate.jobs.a]\nscript = 'a.py'\nmetric = 'rss'", "metric is one of allocated, reserved, requested"),
        ("[gate.jobs.a]\nscript = 'a.py'\nmodule = 1", "module is true or false"),
        ("gate = 1", "gate is a table"),
        ("[gate", "cannot read"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, told: str) -> None:
    """A misspelt limit is never no limit."""
    with pytest.raises(OomdocError, match=r"oomdoc\.toml") as error:
        read(written(tmp_path, text))
    assert told in str(error.value)


def test_amounts() -> None:
    """A share is of what it is held against; bytes are themselves."""
    assert parse_amount("2%").of(1000) == 20
    assert parse_amount("0%").of(1000) == 0
    assert parse_amount("1KiB").of(1) == 1024
    assert parse_amount(7).of(1) == 7
