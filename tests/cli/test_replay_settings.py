"""`oomdoc replay` tries settings, judges them against the card that the recording ran on, and names what fits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.snapshots import writer
from oomdoc.snapshots.model import Action, Blocks, DeviceSnapshot, Segments, Snapshot, Stacks, Trace

MIB = 1 << 20
CAPACITY = 300 * MIB


def fragmented(path: Path) -> None:
    """A recording that runs out of memory: 90 MiB asked for, 100 MiB free in four holes of 25 MiB."""
    events: list[tuple[Action, int, int, int]] = []
    allocator = Allocator(None, CAPACITY, lambda *event: events.append(event))
    for address in [allocator.malloc(60 * MIB) for _ in range(4)]:
        allocator.free(address)
    for _ in range(4):
        allocator.malloc(35 * MIB)
    try:
        allocator.malloc(90 * MIB)
    except OutOfMemory as error:
        free = error.device_free
    writer.dump(Snapshot(devices=(snapshot_of(allocator, events, free),), stacks=Stacks()), path)


def snapshot_of(allocator: Allocator, events: list[Any], free: int) -> DeviceSnapshot:
    count, segments = len(events), list(allocator.segments())
    blocks = [(index, block) for index, segment in enumerate(segments) for block in segment.blocks]
    return DeviceSnapshot(
        device=0,
        trace=Trace(
            action=np.array([event[0] for event in events], np.uint8),
            address=np.array([0 if event[0] is Action.OOM else event[1] for event in events], np.uint64),
            size=np.array([event[2] for event in events], np.int64),
            stream=np.zeros(count, np.uint64),
            time_us=np.arange(count, dtype=np.int64),
            stack=np.full(count, -1, np.int32),
            pool=np.zeros(count, np.int32),
            oom_device_free={count - 1: free},
        ),
        segments=Segments(
            address=np.array([segment.address for segment in segments], np.uint64),
            total_bytes=np.array([segment.total_bytes for segment in segments], np.int64),
            stream=np.zeros(len(segments), np.uint64),
            large=np.array([segment.large for segment in segments], np.bool_),
            expandable=np.zeros(len(segments), np.bool_),
            pool=np.zeros(len(segments), np.int32),
            stack=np.full(len(segments), -1, np.int32),
        ),
        blocks=Blocks(
            address=np.array([block.address for _, block in blocks], np.uint64),
            size=np.array([block.size for _, block in blocks], np.int64),
            requested=np.array([block.requested for _, block in blocks], np.int64),
            state=np.array([block.state for _, block in blocks], np.uint8),
            segment=np.array([index for index, _ in blocks], np.int32),
            stack=np.full(len(blocks), -1, np.int32),
        ),
    )


def test_it_names_the_setting_under_which_the_job_would_have_fitted(oomdoc, tmp_path):
    """And with that setting, asked for by name, it exits 0; with the recorded ones 1."""
    path = tmp_path / "oom.pickle"
    fragmented(path)
    done = oomdoc("replay", path)
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "expandable_segments:True: fits; 240.0 MiB reserved at peak" in text
    named = oomdoc("replay", "--alloc-conf", "expandable_segments:True", "--format", "json", path)
    assert named.returncode == 0
    (replay,) = [device["replay"] for device in json.loads(named.stdout)["devices"]]
    assert (replay["fits"], replay["peak_reserved_bytes"]) == (True, 240 * MIB)
    refused = oomdoc("replay", "--alloc-conf", "garbage_collection_threshold:0.9", "--format", "json", path)
    assert refused.returncode == 1


def test_an_unknown_setting_is_refused_by_name(oomdoc, tmp_path):
    path = tmp_path / "oom.pickle"
    fragmented(path)
    done = oomdoc("replay", "--alloc-conf", "expandable_segment:True", path)
    assert done.returncode == 2
    assert "unknown key 'expandable_segment'" in " ".join(done.stderr.split())


FRAGMENTING = """
import torch

MIB = 1 << 20


def block(size):
    return torch.empty(size * MIB, dtype=torch.uint8, device="cuda")


held = [block(60) for _ in range(4)]
del held
kept = [block(35) for _ in range(4)]
large = block(90)
"""


@pytest.mark.slow
def test_a_what_if_proves_itself(oomdoc, tmp_path):
    """Out of memory on the virtual GPU; under the setting that `replay` names first the script fits, as predicted."""
    script = tmp_path / "fragments.py"
    script.write_text(FRAGMENTING)
    card = ("--virtual", "--gpu", "rtx-4090", "--capacity", "771MiB")  # 300 MiB beside the context
    failed = oomdoc("run", *card, "--run-dir", "failed", script)
    assert failed.returncode == 1
    assert "OutOfMemoryError" in failed.stderr
    told = " ".join(oomdoc("replay", "failed").stdout.split())
    named, _, rest = told.partition("verdict does not fit ")[2].partition(": fits; ")
    assert named == "expandable_segments:True"
    fitted = oomdoc("run", *card, "--alloc-conf", named, "--run-dir", "fitted", "--format", "json", script)
    assert fitted.returncode == 0
    (device,) = json.loads(fitted.stdout)["devices"]
    assert rest.startswith(f"{device['peak']['reserved_bytes'] / MIB:.1f} MiB reserved at peak")
