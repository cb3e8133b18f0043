"""What the writer makes opens in PyTorch's own viewer."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from oomdoc.snapshots import reader, timeline, writer
from oomdoc.snapshots.unpickler import load_scanned

NAMES = ("lm-peak-tiny-complete.pickle", "flexgen-history-2023.pickle", "megatron-vllm-private-pools.pickle")


def viz(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torch.cuda._memory_viz", *args], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_segments_and_stats_and_trace_read_a_written_file(shared: Path, tmp_path: Path, name: str) -> None:
    snapshot = reader.load(shared / "data" / "snapshots" / name)
    path = tmp_path / "again.pickle"
    writer.dump(snapshot, path)
    data = load_scanned(path.read_bytes())
    from torch.cuda import _memory_viz

    text = _memory_viz.segments(data, format_flamegraph=lambda lines: lines)
    assert len(text.splitlines()) >= sum(len(device.blocks) for device in snapshot.devices)
    total = sum(
        int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if ";active_" in line and "<gaps>" not in line
    )
    assert total == sum(timeline.extent(device).final for device in snapshot.devices)
    assert "segments:" in _memory_viz.segsum(data)
    events = sum(len(device.trace) for device in snapshot.devices)
    assert (f"{events} entries" in _memory_viz.trace(data)) == (events > 0)


def test_trace_plot_and_segment_plot_run_as_a_person_would_run_them(shared: Path, tmp_path: Path) -> None:
    snapshot = reader.load(shared / "data" / "snapshots" / NAMES[0])
    path, page = tmp_path / "again.pickle", tmp_path / "page.html"
    writer.dump(snapshot, path)
    for command in ("trace_plot", "segment_plot"):
        viz(command, str(path), "-o", str(page))
        found = re.search(r"local_files = (\[.*\])", page.read_text())
        assert found
        inside = base64.b64decode(json.loads(found.group(1))[0]["base64"])
        assert inside.startswith(path.read_bytes()[:2])
        assert timeline.extent(reader.load(page).devices[0]) == timeline.extent(snapshot.devices[0])
