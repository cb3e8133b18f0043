"""Columns for `segments` and their `blocks`, in every form that PyTorch has written since 2.0."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .columns import MAX_BYTES, U64, PoolTable
from .interning import StackTable
from .model import Blocks, BlockState, Segments

MAX_DEVICE = 1023
STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE_ALLOCATED,
    "active_pending_free": BlockState.ACTIVE_PENDING_FREE,
    "active_awaiting_free": BlockState.ACTIVE_PENDING_FREE,  # what the documentation calls it
}

Raw = Mapping[str, Any]


@dataclass(slots=True)
class RawSegments:
    """Segments of one device, still as dicts, and what had to be left out on the way."""

    segments: list[Raw] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def by_device(segments: object) -> tuple[dict[int, RawSegments], list[str]]:
    """Sort the segments of a file by device (missing = 0) and address; -> (per device, problems)."""
    if not isinstance(segments, list | tuple):
        return {}, ["the segments are not a list and were left out"]
    found: dict[int, RawSegments] = {}
    lost = 0
    for raw in segments:
        device = raw.get("device", 0) if isinstance(raw, dict) else None
        if (
            type(device) is int
            and 0 <= device <= MAX_DEVICE
            and _in(raw.get("address"), U64)
            and _in(raw.get("total_size"), MAX_BYTES)
            and isinstance(raw.get("blocks", []), list | tuple)
        ):
            found.setdefault(device, RawSegments()).segments.append(raw)
        else:
            lost += 1
    for each in found.values():
        each.segments.sort(key=lambda raw: raw["address"])
    problem = f"{lost} of {len(segments)} segments have no usable device, address, size or block list and were left out"
    return found, [problem] if lost else []


def columns(raw: RawSegments, stacks: StackTable, pools: PoolTable, device: int) -> tuple[Segments, Blocks, list[str]]:
    """-> (segments, their blocks, problems)."""
    blocks: list[tuple[int, int, int, int, int, int]] = []
    for row, segment in enumerate(raw.segments):
        address = segment["address"]
        for block in segment.get("blocks", []):
            size = block.get("size") if isinstance(block, dict) else None
            if type(size) is not int or not 0 <= size <= MAX_BYTES:
                raw.left_out["blocks have no usable size"] += 1
                continue
            at = block.get("address")
            if not _in(at, U64):
                at = min(address, U64)  # torch 2.0 writes none: blocks are contiguous
            state = _state(block.get("state"), raw.left_out)
            requested = 0 if state is BlockState.INACTIVE else requested_bytes(block, size)
            blocks.append((at, size, requested, int(state), row, stacks.add(_frames(block))))
            address = at + size
    segments = Segments(
        address=np.array([s["address"] for s in raw.segments], np.uint64),
        total_bytes=np.array([s["total_size"] for s in raw.segments], np.int64),
        stream=np.array([_stream(s.get("stream")) for s in raw.segments], np.uint64),
        large=np.array([s.get("segment_type") != "small" for s in raw.segments], np.bool_),
        expandable=np.array([s.get("is_expandable") is True for s in raw.segments], np.bool_),
        pool=np.array([max(pools.add(s.get("segment_pool_id")), 0) for s in raw.segments], np.int32),
        stack=np.array([stacks.add(s.get("frames")) for s in raw.segments], np.int32),
    )
    problems = [f"device {device}: {count} {what}" for what, count in raw.left_out.items()]
    return segments, _blocks(blocks), problems


def _blocks(rows: list[tuple[int, int, int, int, int, int]]) -> Blocks:
    address, size, requested, state, segment, stack = zip(*rows, strict=True) if rows else ((),) * 6
    return Blocks(
        address=np.array(address, np.uint64),
        size=np.array(size, np.int64),
        requested=np.array(requested, np.int64),
        state=np.array(state, np.uint8),
        segment=np.array(segment, np.int32),
        stack=np.array(stack, np.int32),
    )


def requested_bytes(block: Raw, size: int) -> int:
    """Requested bytes of a live block; old formats keep them in the history, the oldest nowhere."""
    if _in(block.get("requested_size"), MAX_BYTES):
        return int(block["requested_size"])
    latest = _latest(block)
    return int(latest["real_size"]) if _in(latest.get("real_size"), MAX_BYTES) else size


def _frames(block: Raw) -> object:
    return block["frames"] if "frames" in block else _latest(block).get("frames")


def _latest(block: Raw) -> Raw:
    history = block.get("history")
    if isinstance(history, list | tuple) and history and isinstance(history[0], dict):
        return history[0]
    return {}


def _state(raw: object, left_out: Counter[str]) -> BlockState:
    state = STATES.get(raw) if isinstance(raw, str) else None
    if state is None:
        left_out["blocks are in a state that oomdoc does not know and were taken as live"] += 1
        return BlockState.ACTIVE_ALLOCATED
    return state


def _stream(value: object) -> int:
    return value & U64 if type(value) is int and abs(value) <= U64 else 0


def _in(value: object, high: int) -> bool:
    return type(value) is int and 0 <= value <= high
