"""One rank of FSDP2: shards, gathered parameters and states are what a person counts."""

from collections import Counter
from pathlib import Path

import pytest
from oomdoc.diagnosers.interface import CATEGORIES
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.snapshots import reader
from oomdoc.snapshots.timeline import lifetimes, live_at

JOB = Path(__file__).parent / "jobs" / "fsdp2_blocks.py"
BLOCK = 4 * 1024 * 1024  # bytes of one block's parameters
WORLD = 4


def test_shards_and_gathered_blocks_are_counted_exactly(tmp_path: Path) -> None:
    result = run(RunSpec(script=str(JOB), run_dir=tmp_path, gpu="a100-40gb", nproc_per_node=WORLD, rank=1, steps=0))
    assert (result.exit_status, result.failure) == (0, None)
    assert [path.name for path in result.snapshots] == ["rank1.pickle"]
    snapshot = reader.load(result.snapshots[0])
    device, recording = snapshot.devices[0], snapshot.recording
    assert recording is not None
    assert (recording.rank, recording.world_size) == (1, WORLD)
    column, marks, rows = recording.devices[0].category, recording.devices[0].marks, lifetimes(device)

    def held(event: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for row in live_at(rows, event):
            category = int(column[rows.birth[row]])
            found[CATEGORIES[category] if category >= 0 else "none"] += int(rows.requested[row])
        return found

    step = next(mark.event for mark in marks if (mark.step, mark.phase) == (2, "optimizer"))
    at_step = held(step)
    assert at_step["parameter"] == 4 * BLOCK // WORLD
    assert at_step["gradient"] == 4 * BLOCK // WORLD
    assert at_step["optimizer_state"] == 2 * 4 * BLOCK // WORLD
    forward = next(mark.event for mark in marks if (mark.step, mark.phase) == (2, "forward"))
    backward = next(mark.event for mark in marks if (mark.step, mark.phase) == (2, "backward"))
    most = max(held(event)["communication"] for event in range(forward, backward))
    assert 2 * BLOCK <= most <= 4 * BLOCK  # a block unsharded, and one or two all-gathers under way
    assert held(step)["communication"] == 0


@pytest.mark.slow
def test_the_type_in_which_parameters_are_gathered_is_recorded(tmp_path: Path) -> None:
    """A policy's bfloat16; nothing where there is no policy."""
    half = tmp_path / "half.py"
    policy = "fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))"
    text = JOB.read_text().replace("import fully_shard", "import MixedPrecisionPolicy, fully_shard")
    half.write_text(text.replace("fully_shard(block)", policy))
    for script, dtype in ((JOB, None), (half, "bfloat16")):
        folder = tmp_path / script.stem
        result = run(RunSpec(script=str(script), run_dir=folder, gpu="a100-40gb", nproc_per_node=WORLD, steps=1))
        assert result.failure is None, result.failure
        recording = reader.load(result.snapshots[0]).recording
        assert recording is not None
        parameters = recording.facts["parameters"]
        assert isinstance(parameters, dict)
        assert parameters["gathered_dtype"] == dtype


ACCUMULATED = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("nccl")
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
fully_shard(model, reshard_after_forward=False)  # its parameters stay gathered until the backward pass is through
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    for _ in range(3):
        model.set_reshard_after_backward(False)
        model(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_backward_passes_over_gathered_parameters_are_no_steps(tmp_path: Path) -> None:
    script = tmp_path / "accumulated.py"
    script.write_text(ACCUMULATED)
    spec = RunSpec(script=str(script), run_dir=tmp_path / "run", gpu="a100-40gb", nproc_per_node=4, rank=0, steps=0)
    result = run(spec)
    assert result.exit_status == 0
    recording = reader.load(result.snapshots[0]).recording
    assert recording is not None
    assert max(mark.step for mark in recording.devices[0].marks) == 2
    assert recording.facts["backwards_per_step"] == 3
