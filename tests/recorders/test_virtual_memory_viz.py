"""The snapshot of a virtual run is sound, and opens in PyTorch's own viewer like a real one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.snapshots import reader, timeline
from oomdoc.snapshots.check import self_check
from oomdoc.snapshots.unpickler import load_scanned

TRAIN = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_virtual_run_opens_in_memory_viz(tmp_path: Path) -> None:
    """`segments` adds up to the live bytes, and the page of `trace_plot` holds the same recording."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    result = run(RunSpec(script=str(script), run_dir=tmp_path / "run", gpu="a100-40gb"))
    (path,) = result.snapshots
    snapshot = reader.load(path)
    assert self_check(snapshot) == ()
    (device,) = snapshot.devices

    from torch.cuda import _memory_viz

    data = load_scanned(path.read_bytes())
    lines = _memory_viz.segments(data, format_flamegraph=lambda text: text).splitlines()
    live = [int(line.rsplit(" ", 1)[1]) for line in lines if ";active_" in line and "<gaps>" not in line]
    assert sum(live) == timeline.extent(device).final > 0

    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(path), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert re.search(r"local_files = \[.*\]", page.read_text())
    assert timeline.extent(reader.load(page).devices[0]) == timeline.extent(device)
