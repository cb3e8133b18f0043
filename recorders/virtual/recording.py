"""The virtual GPU's events and blocks as a `Snapshot`, with everything the hooks knew about each event."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...diagnosers.interface import CATEGORIES
from ...snapshots.model import (
    Action,
    Blocks,
    BlockState,
    DeviceRecording,
    DeviceSnapshot,
    Mark,
    Recording,
    Segments,
    Snapshot,
    Stacks,
    Trace,
)
from ...snapshots.recording import SCHEMA
from ..categories import COMMUNICATION, WEAKER_THAN_COMMUNICATION, asked_by_collective
from .device import EventLog, VirtualDevice


def build(
    device: VirtualDevice,
    marks: Sequence[Sequence[Mark]],
    modules: Sequence[str],
    *,
    argv: Sequence[str] = (),
    rank: int = 0,
    world_size: int = 1,
    facts: Mapping[str, object] | None = None,
    fidelity: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Snapshot:
    """The state of the virtual GPU now. Every device that saw an event is in it (device 0 always)."""
    stacks = device.stacks.freeze()
    used = [index for index in range(device.count) if len(device.logs[index]) or index == 0]
    return Snapshot(
        devices=tuple(_device(device, index) for index in used),
        stacks=stacks,
        settings=settings or {},
        recording=Recording(
            schema=SCHEMA,
            kind="virtual",
            argv=tuple(argv),
            versions={"torch": str(torch.__version__), "python": platform.python_version()},
            gpu=device.target.name,
            capacity_bytes=device.target.total_bytes,
            outside_bytes=max(device.outside_bytes(index) for index in used),
            rank=rank,
            world_size=world_size,
            categories=CATEGORIES,
            modules=tuple(modules),
            devices={index: _recorded(device.logs[index], marks[index], stacks) for index in used},
            facts=facts or {},
            fidelity=fidelity or {},
        ),
    )


def _device(device: VirtualDevice, index: int) -> DeviceSnapshot:
    log = device.logs[index]
    views = list(device.allocators[index].segments())
    pools = tuple(dict.fromkeys([(0, 0), *(view.pool_id for view in views)]))
    trace = Trace(
        action=np.array(log.action, np.uint8),
        address=np.array(log.address, np.uint64),
        size=np.array(log.size, np.int64),
        stream=np.array(log.stream, np.uint64),
        time_us=np.array(log.time_us, np.int64),
        stack=np.array(log.stack, np.int32),
        pool=np.full(len(log), 0 if len(pools) == 1 else -1, np.int32),  # with private pools: not recorded by event
        oom_device_free=dict(log.free_bytes_at_oom),
    )
    stack_of = _latest_stacks(trace)
    blocks = [(row, block) for row, view in enumerate(views) for block in view.blocks]
    live = [block.state != BlockState.INACTIVE for _, block in blocks]
    return DeviceSnapshot(
        device=index,
        pools=pools,
        trace=trace,
        segments=Segments(
            address=np.array([view.address for view in views], np.uint64),
            total_bytes=np.array([view.total_bytes for view in views], np.int64),
            stream=np.array([view.stream for view in views], np.uint64),
            large=np.array([view.large for view in views], np.bool_),
            expandable=np.array([view.expandable for view in views], np.bool_),
            pool=np.array([pools.index(view.pool_id) for view in views], np.int32),
            stack=np.full(len(views), -1, np.int32),
        ),
        blocks=Blocks(
            address=np.array([block.address for _, block in blocks], np.uint64),
            size=np.array([block.size for _, block in blocks], np.int64),
            requested=np.array([block.requested for _, block in blocks], np.int64),
            state=np.array([block.state for _, block in blocks], np.uint8),
            segment=np.array([row for row, _ in blocks], np.int32),
            stack=np.array(
                [stack_of.get(block.address, -1) if on else -1 for on, (_, block) in zip(live, blocks, strict=True)],
                np.int32,
            ),
        ),
    )


def _latest_stacks(trace: Trace) -> dict[int, int]:
    """Address -> the stack of its last allocation."""
    rows = np.flatnonzero(trace.action == Action.ALLOC)
    return dict(zip(trace.address[rows].tolist(), trace.stack[rows].tolist(), strict=True))


def _recorded(log: EventLog, marks: Sequence[Mark], stacks: Stacks) -> DeviceRecording:
    allocates = np.array(log.action, np.uint8) == Action.ALLOC
    category = np.array(log.category, np.int8)
    for_collectives = np.array(asked_by_collective(stacks), np.bool_)[np.array(log.stack, np.int64)]
    category[for_collectives & np.isin(category, WEAKER_THAN_COMMUNICATION)] = COMMUNICATION
    return DeviceRecording(
        category=np.where(allocates, category, np.int8(-1)).astype(np.int8),
        module=np.array(log.module, np.int32),
        estimated=np.array(log.estimated, np.bool_) & allocates,
        marks=tuple(marks),
    )


def fidelity(device: VirtualDevice, notes: Mapping[str, int], estimated: Mapping[str, Any]) -> dict[str, object]:
    """How far the numbers can be trusted: what was assumed, how often, and the bytes of estimates at their highest.

    "peak_range": by device, how much less and more the highest allocated bytes are with every estimate at its least or
    its most, and up to what the reserved bytes may go for a moment (0: nothing of that kind ran).
    """
    return {
        "assumptions": dict(notes),
        "estimated": {source: {"times": each[0], "largest_bytes": each[1]} for source, each in estimated.items()},
        "estimated_events": int(sum(sum(log.estimated) for log in device.logs)),
        "peak_range": {
            str(index): {
                "less_bytes": allocator.peak_allocated_bytes - band.low,
                "more_bytes": band.high - allocator.peak_allocated_bytes,
                "brief_bytes": band.brief,
            }
            for index, (allocator, band) in enumerate(zip(device.allocators, device.bands, strict=True))
        },
    }
