"""What other tools are given: each file by the tool's own schema, parser or rules, with the report's numbers."""

import csv
import io
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from oomdoc.reports.text import CATEGORY_TITLES
from oomdoc.snapshots import reader, timeline, writer
from oomdoc.snapshots.unpickler import load_scanned

from .recordings import HOSTILE, MIB, command, exported, hostile_stacks, ordinary_stacks, snapshot, training

SCHEMA = Path(__file__).parent / "schemas" / "speedscope.json"
Export = Callable[..., bytes]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two devices, of which the second ran out of memory."""
    path = tmp_path_factory.mktemp("exports") / "two.pickle"
    stacks = ordinary_stacks()
    writer.dump(snapshot([training(1200, stacks), training(1200, stacks, 300 * MIB)]), path)
    return path


def devices(path: Path) -> list[dict[str, Any]]:
    return json.loads(exported(path, "json"))["devices"]  # type: ignore[no-any-return]


def live(device: dict[str, Any]) -> int:
    return sum(each["bytes"] for each in device["categories"].values())


def test_speedscope_is_valid_and_weighs_the_live_bytes(recording: Path) -> None:
    content = json.loads(exported(recording, "speedscope"))
    jsonschema.validate(content, json.loads(SCHEMA.read_text()))
    for profile, device in zip(content["profiles"], devices(recording), strict=True):
        assert sum(profile["weights"]) == profile["endValue"] == live(device)
        assert len(profile["weights"]) == len(profile["samples"])
        assert max(max(sample) for sample in profile["samples"]) < len(content["shared"]["frames"])
    names = {frame["name"] for frame in content["shared"]["frames"]}
    assert {"main", "forward", "[activations]"} <= names


def test_collapsed_stacks_weigh_the_live_bytes(recording: Path) -> None:
    """One stack a line, frames between semicolons, the bytes behind the last blank."""
    sums: Counter[str] = Counter()
    for line in exported(recording, "collapsed").decode().splitlines():
        stack, bytes_ = line.rsplit(" ", 1)
        sums[stack.split(";")[0]] += int(bytes_)
        assert all(stack.split(";"))
    found = devices(recording)
    assert sums == {f"device {device['device']}": live(device) for device in found}


def test_trace_events_follow_the_format(recording: Path) -> None:
    """Required keys of each phase, slices that end, numbers in counters, and times that do not run back."""
    content = json.loads(exported(recording, "perfetto"))
    events = content["traceEvents"]
    needed = {
        "M": {"args"}, "C": {"ts", "args"}, "X": {"ts", "dur"}, "b": {"ts", "id", "cat"}, "e": {"ts", "id", "cat"},
        "i": {"ts", "s"},
    }  # fmt: skip
    open_: dict[tuple[str, str], int] = {}
    latest: dict[int, int] = {}
    for event in events:
        assert {"ph", "pid", "tid", "name"} | needed[event["ph"]] <= set(event)
        if "ts" in event:
            assert event["ts"] >= latest.get(event["pid"], 0)
            latest[event["pid"]] = event["ts"]
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        if event["ph"] in "be":
            key = (event["cat"], event["id"])
            open_[key] = open_.get(key, 0) + (1 if event["ph"] == "b" else -1)
    assert set(open_.values()) == {0}
    for pid, device in enumerate(devices(recording), 1):
        counters = [e["args"] for e in events if e["ph"] == "C" and e["pid"] == pid]
        assert max(sum(c.values()) for c in counters if "reserved" not in c) == device["peak"]["requested_bytes"]
        assert max(c["reserved"] for c in counters if "reserved" in c) == device["peak"]["reserved_bytes"]
        assert any(e["name"].startswith("out of memory") for e in events if e["pid"] == pid) == bool(device["oom"])


def test_the_table_has_every_allocation(recording: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(recording, "csv").decode())))
    for device, loaded in zip(devices(recording), reader.load(recording).devices, strict=True):
        mine = [row for row in rows if row["device"] == str(device["device"])]
        assert len(mine) == len(timeline.lifetimes(loaded))
        alive = [row for row in mine if row["alive_at_report"] == "True"]
        by_category: Counter[str] = Counter()
        for row in alive:
            by_category[row["category"]] += int(row["requested_bytes"])
        assert by_category == {name: each["bytes"] for name, each in device["categories"].items()}
        assert {row["confidence"] for row in alive} == {each["confidence"] for each in device["categories"].values()}


def test_parquet_has_the_same_cells(recording: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    done = command(recording, "--output", tmp_path / "rows.parquet")
    assert done.returncode == 1, done.stderr.decode()
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    text = list(csv.DictReader(io.StringIO(exported(recording, "csv").decode())))
    assert [{key: "" if cell is None else str(cell) for key, cell in row.items()} for row in table] == text


def test_parquet_without_pyarrow_says_what_to_type(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('not here')\n")
    done = subprocess.run(
        [sys.executable, "-m", "oomdoc", "analyze", str(recording), "--format", "parquet"], capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "oomdoc: --format parquet needs pyarrow: pip install pyarrow, or use --format csv\n"
    )


def test_the_snapshot_opens_in_torch_s_own_viewer(recording: Path, tmp_path: Path) -> None:
    """trace_plot and segments of torch.cuda._memory_viz, and every allocation of the trace with its category."""
    path = tmp_path / "again.pickle"
    assert command(recording, "--format", "snapshot", "--output", path).returncode == 1
    raw = load_scanned(path.read_bytes())
    rows = list(csv.DictReader(io.StringIO(exported(recording, "csv").decode())))
    for row in rows:
        event = raw["device_traces"][int(row["device"])][int(row["alloc_event"])]
        assert event["category"] == CATEGORY_TITLES[row["category"]]
    for trace in raw["device_traces"]:  # without it the viewer's script fails
        assert any(event.get("category") == "unknown" for event in trace)
    from torch.cuda import _memory_viz

    text = _memory_viz.segments(raw, format_flamegraph=lambda lines: lines)
    total = sum(
        int(each.rsplit(" ", 1)[1]) for each in text.splitlines() if ";active_" in each and "<gaps>" not in each
    )
    assert total == sum(device["final_bytes"] for device in devices(recording))
    assert "Active Memory Timeline" in _memory_viz.trace_plot(raw)
    assert "Allocator State History" in _memory_viz.segment_plot(raw)
    again = reader.load(path)
    assert [timeline.extent(each) for each in again.devices] == [
        timeline.extent(each) for each in reader.load(recording).devices
    ]


def test_a_snapshot_of_several_ranks_is_refused(recording: Path) -> None:
    done = command(recording, recording, "--format", "snapshot")
    assert done.returncode == 2
    assert "give a single snapshot or rank" in done.stderr.decode()


@pytest.mark.parametrize("form", ["speedscope", "collapsed", "perfetto", "csv", "parquet", "snapshot"])
def test_a_log_has_no_allocations(tmp_path: Path, form: str) -> None:
    """Said in one line, whatever the format."""
    (tmp_path / "train.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    done = command(tmp_path / "train.log", "--format", form)
    assert done.returncode == 2
    assert done.stderr.decode() == f"oomdoc: there is nothing to write as {form}: a log has no allocations\n"


def test_hostile_names_in_every_format(tmp_path: Path) -> None:
    """Still one cell, one frame, one line each; nothing that a spreadsheet would run."""
    path = tmp_path / "bad.pickle"
    names = ("=cmd|' /C calc'!A0", "+1;2", "@sum", "-2", "a;b\nc", *HOSTILE)
    stacks = [(frame, *rest) for frame, *rest in hostile_stacks()]
    more = [tuple(type(stacks[0][0])(f"{name}", 3, name) for _ in range(2)) for name in names]
    writer.dump(snapshot([training(600, more)]), path)
    rows = list(csv.reader(io.StringIO(exported(path, "csv").decode())))
    assert len({len(row) for row in rows}) == 1
    assert not [cell for row in rows for cell in row if re.match(r"[=+@\t\r]|-\D", cell)]
    jsonschema.validate(json.loads(exported(path, "speedscope")), json.loads(SCHEMA.read_text()))
    for line in exported(path, "collapsed").decode().splitlines():
        assert re.fullmatch(r"[^;]+;[^;]+;\[[a-z ]+\] \d+", line)
    json.loads(exported(path, "perfetto"))
    assert reader.load(path).devices[0].trace.size.sum() == _sizes(exported(path, "snapshot"), tmp_path)


def _sizes(content: bytes, folder: Path) -> int:
    path = folder / "out.pickle"
    path.write_bytes(content)
    return int(np.sum(reader.load(path).devices[0].trace.size))


@pytest.mark.parametrize(
    ("name", "start"),
    [("o.html", "<!DOCTYPE html>"), ("o.json", '{\n "schema"'), ("o.md", "## "), ("o.svg", "<svg"), ("o.csv", "rank,"),
     ("o.txt", "● "), ("o", "● ")],
)  # fmt: skip
def test_the_name_of_the_output_tells_the_format(recording: Path, tmp_path: Path, name: str, start: str) -> None:
    done = command(recording, "--output", tmp_path / name)
    assert (done.returncode, done.stdout) == (1, b"")
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_a_format_that_is_given_wins_over_the_name(recording: Path, tmp_path: Path) -> None:
    assert command(recording, "-f", "json", "--output", tmp_path / "o.html").returncode == 1
    assert json.loads((tmp_path / "o.html").read_text())["schema"] == "oomdoc.report/1"


def test_the_recording_itself_is_not_overwritten(recording: Path) -> None:
    before = recording.read_bytes()
    done = command(recording, "--output", recording)
    assert done.returncode == 2
    assert "is what is read" in done.stderr.decode()
    assert recording.read_bytes() == before
    assert before[:1] == pickle.PROTO
