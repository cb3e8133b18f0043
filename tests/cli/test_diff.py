"""`oomdoc diff`: what the real command line says of two recordings."""

import json
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "diff.schema.json").read_text(encoding="utf-8"))
MIB = 2**20

TRAIN = """
import sys

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.up(x)
        h = torch.tanh(h)
        return x + self.down(h)


model = nn.Sequential(*(Block(256) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(int(sys.argv[1]), 128, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def line_of(text: str, source: str = TRAIN) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def recorded(oomdoc: Run, folder: Path, source: str, batch: int, name: str) -> str:
    script = folder / "train.py"
    script.write_text(source)
    done = oomdoc("run", "--virtual", "--gpu", "t4", "-o", name, script, str(batch))
    assert done.returncode == 0, done.stderr
    return name


def diffed(oomdoc: Run, before: str | Path, after: str | Path) -> dict[str, Any]:
    done = oomdoc("diff", "--format", "json", before, after)
    assert (done.returncode, done.stderr) == (0, "")
    content: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(content, SCHEMA, jsonschema.Draft202012Validator)
    for device in content["devices"]:
        rows = [row for row in content["moved"] if (row["rank"], row["device"]) == (device["rank"], device["device"])]
        assert sum(row["bytes"] for row in rows) == device["bytes"]
        assert sum(row["bytes"] for row in device["sizes"]) == device["bytes"]
        assert sum(row["bytes"] for row in device["categories"].values()) == device["bytes"]
    return content


def small_snapshot(path: Path, file: str, function: str, size: int, events_kept: bool = True) -> Path:
    """A recording of two blocks, one of them of `size` bytes."""
    segments, events = [], []
    for number, each in enumerate((2 * MIB, size)):
        frames = [{"filename": file, "line": 3 + number, "name": function}]
        address = (number + 1) << 30
        block = {"address": address, "size": each, "requested_size": each, "state": "active_allocated",
                 "frames": frames}  # fmt: skip
        segments.append({"device": 0, "address": address, "total_size": each, "allocated_size": each,
                         "active_size": each, "requested_size": each, "stream": 0, "segment_type": "large",
                         "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
                         "blocks": [block]})  # fmt: skip
        event = {"addr": address, "size": each, "stream": 0, "time_us": number, "frames": frames}
        events += [{"action": "segment_alloc", **event}, {"action": "alloc", **event}]
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [events if events_kept else []]}, protocol=4))
    return path


@pytest.mark.slow
def test_a_doubled_batch_names_activations_and_the_lines_that_doubled(oomdoc: Run, tmp_path: Path) -> None:
    """And parameters do not appear: they are the same."""
    before = recorded(oomdoc, tmp_path, TRAIN, 8, "batch8")
    after = recorded(oomdoc, tmp_path, TRAIN, 16, "batch16")
    content = diffed(oomdoc, before, after)
    (device,) = content["devices"]
    assert (device["before"]["at"], device["after"]["at"]) == ("peak", "peak")
    assert next(iter(device["categories"])) == "activation"
    held = device["categories"]["activation"]
    assert abs(held["after_bytes"] - 2 * held["before_bytes"]) < 512  # scalars have no batch
    assert "parameter" not in device["categories"]
    saved = [row for row in content["moved"] if row["category"] == "activation"]
    doubled = {row["line"] for row in saved if row["after_bytes"] == 2 * row["before_bytes"] and not row["count"]}
    assert {line_of("torch.tanh(h)"), line_of("self.down(h)")} <= doubled
    assert all(row["match"] == "same-line" for row in content["moved"])
    assert content["renamed"] == []

    text = oomdoc("diff", before, after).stdout
    assert "most of it activations" in text
    assert f"train.py:{line_of('torch.tanh(h)')} in forward" in text
    assert "x2.00" in text


@pytest.mark.slow
def test_code_that_moved_is_no_change(oomdoc: Run, tmp_path: Path) -> None:
    """Comments above, a class of another name in between: the same bytes, and every row says where it was."""
    moved = TRAIN.replace("import sys\n", "import sys  # arguments\n# as ever\n# and ever\n", 1)
    before = recorded(oomdoc, tmp_path, TRAIN, 8, "before")
    after = recorded(oomdoc, tmp_path, moved, 8, "after")
    content = diffed(oomdoc, before, after)
    assert content["moved"] == []
    lines = {(row["was"]["line"], row["line"]) for row in content["renamed"]}
    assert (line_of("torch.tanh(h)"), line_of("torch.tanh(h)", moved)) in lines
    assert all(later == earlier + 2 for earlier, later in lines)
    assert {row["match"] for row in content["renamed"]} == {"same-function"}
    assert "Moved in the code" in oomdoc("diff", before, after).stdout


def test_a_recording_without_events_is_said_to_have_no_peak(oomdoc: Run, tmp_path: Path) -> None:
    """What is compared then is the state at the dump."""
    one = small_snapshot(tmp_path / "one.pickle", "a.py", "f", MIB)
    content = diffed(oomdoc, one, small_snapshot(tmp_path / "state.pickle", "a.py", "f", MIB, events_kept=False))
    (device,) = content["devices"]
    assert (device["before"]["at"], device["after"]["at"], device["bytes"]) == ("peak", "dump", 0)
    assert [(each["code"], "no events" in each["reason"]) for each in content["inconclusive"]] == [("after", True)]


def test_the_schema_is_strict(oomdoc: Run, tmp_path: Path) -> None:
    """A key too many, or one too few, is refused: at the top and in a row."""
    one = small_snapshot(tmp_path / "one.pickle", "a.py", "f", MIB)
    content = diffed(oomdoc, one, small_snapshot(tmp_path / "other.pickle", "a.py", "f", 2 * MIB))
    valid = jsonschema.Draft202012Validator(SCHEMA).is_valid
    (row,) = content["moved"]
    assert not valid({**content, "extra": 1})
    assert not valid({**content, "moved": [{**row, "extra": 1}]})
    assert not valid({**content, "moved": [{key: row[key] for key in row if key != "bytes"}]})


def test_the_same_file_twice(oomdoc: Run, tmp_path: Path) -> None:
    """No rows, in any format."""
    one = small_snapshot(tmp_path / "one.pickle", "a.py", "f", MIB)
    content = diffed(oomdoc, one, one)
    assert (content["moved"], content["renamed"], content["inconclusive"]) == ([], [], [])
    (device,) = content["devices"]
    assert (device["bytes"], device["categories"], device["sizes"]) == (0, {}, [])
    assert device["before"]["live_bytes"] == 3 * MIB
    for form in ("terminal", "markdown"):
        text = oomdoc("diff", "--format", form, one, one).stdout
        assert "No change: 3.0 MiB" in text
        assert "a.py" not in text


def test_ranks_are_compared_one_by_one(oomdoc: Run, tmp_path: Path) -> None:
    """A run directory has a file per rank; what only one has is named."""
    for name, sizes in (("two", (MIB, MIB)), ("three", (MIB, 5 * MIB, MIB))):
        (tmp_path / name).mkdir()
        for rank, size in enumerate(sizes):
            small_snapshot(tmp_path / name / f"rank{rank}.pickle", "a.py", "f", size)
    content = diffed(oomdoc, "two", "three")
    assert [(device["rank"], device["bytes"]) for device in content["devices"]] == [(0, 0), (1, 4 * MIB)]
    assert [(row["rank"], row["line"], row["bytes"]) for row in content["moved"]] == [(1, 4, 4 * MIB)]
    assert content["inconclusive"] == [{"code": "after", "reason": "rank 2, device 0 is in this recording only"}]


@pytest.mark.parametrize("form", ["terminal", "markdown", "json"])
def test_hostile_names_stay_text(oomdoc: Run, tmp_path: Path, form: str) -> None:
    """Escape sequences, table borders, links and HTML in the names of a stranger's snapshot do nothing."""
    file, function = "a`|\n# b\x1b[2J.py", "<img src=x>[a](javascript:b)"
    one = small_snapshot(tmp_path / "one.pickle", file, function, MIB)
    other = small_snapshot(tmp_path / "other.pickle", file, function, 3 * MIB)
    done = oomdoc("diff", "--format", form, one, other)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    if form == "json":
        (row,) = json.loads(done.stdout)["moved"]
        assert (row["file"], row["function"]) == (file, function)
    if form == "markdown":
        row = next(line for line in done.stdout.splitlines() if "javascript" in line)
        assert row.count("|") == 6  # the borders of five columns
        assert row.count("`") == 2  # all of it is code
        assert "\n# b" not in done.stdout


def test_what_cannot_be_read(oomdoc: Run, tmp_path: Path) -> None:
    """Status 3 and a line that names the file."""
    one = small_snapshot(tmp_path / "one.pickle", "a.py", "f", MIB)
    done = oomdoc("diff", one, "nowhere.pickle")
    assert (done.returncode, done.stdout) == (3, "")
    assert "nowhere.pickle" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_comparison_in_a_file(oomdoc: Run, tmp_path: Path) -> None:
    """--output writes it there and leaves stdout empty."""
    one = small_snapshot(tmp_path / "one.pickle", "a.py", "f", MIB)
    other = small_snapshot(tmp_path / "other.pickle", "a.py", "f", 2 * MIB)
    done = oomdoc("diff", "--format", "markdown", "--output", "diff.md", one, other)
    assert (done.returncode, done.stdout) == (0, "")
    assert "+1.0 MiB" in (tmp_path / "diff.md").read_text()
