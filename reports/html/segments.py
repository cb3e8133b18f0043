"""The allocator's segments and blocks at the moment of the report, and the segments that live blocks pin."""

from typing import Any

import numpy as np

from ...allocator.fragmentation import pinned
from ...allocator.heap import SegmentView
from ...diagnosers.attribution.whole_trace import ORDER
from ...diagnosers.heap import heap
from ...diagnosers.interface import DeviceProfile
from ...snapshots.model import BlockState
from .packing import Packer

FREE, OTHER = 255, 254  # kinds of a block beside the categories; OTHER = in use, but by no block that is listed


def allocator_map(profile: DeviceProfile, event: int, packer: Packer, most: int) -> dict[str, Any] | None:
    """Segments by address, each with its blocks; None where the snapshot has no segments.

    Of more than `most` segments the smallest are left out; of more blocks, neighbours of one kind that would be less
    than a pixel wide are drawn as one.
    """
    held = heap(profile.snapshot, profile.device_snapshot, event, profile.live)
    if not held:
        return None
    pins = {each.segment.address for each in pinned(held)}
    segments = held
    if len(held) > most:
        kept = sorted(held, key=lambda each: (each.address not in pins, -each.total_bytes))[:most]
        segments = tuple(sorted(kept, key=lambda each: each.address))
    codes = {category: code for code, category in enumerate(ORDER)}
    kinds = {block.address: codes[block.category] for block in profile.live}
    total = sum(segment.total_bytes for segment in segments)
    thin = total / most if sum(len(segment.blocks) for segment in segments) > most else 0
    owner: list[int] = []
    size: list[int] = []
    kind: list[int] = []
    for index, segment in enumerate(segments):
        for block in segment.blocks:
            found = FREE if block.state is BlockState.INACTIVE else kinds.get(block.address, OTHER)
            if thin and owner and owner[-1] == index and kind[-1] == found and block.size < thin:
                size[-1] += block.size
            else:
                owner.append(index)
                size.append(block.size)
                kind.append(found)
    return {
        "left_out": len(held) - len(segments),
        "left_out_bytes": sum(segment.total_bytes for segment in held) - total,
        "address": packer.column([segment.address for segment in segments], "f8"),
        "bytes": packer.column([segment.total_bytes for segment in segments], "f8"),
        "pinned": packer.column([segment.address in pins for segment in segments], "u1"),
        "pools": (pools := list(dict.fromkeys(map(_pool, segments)))),
        "pool": packer.column([pools.index(_pool(segment)) for segment in segments], "i4"),
        "owner": packer.column(owner, "i4"),
        "size": packer.column(size, "f8"),
        "kind": packer.column(np.array(kind, np.uint8), "u1"),
        "kinds": [category.value for category in ORDER],
    }


def _pool(segment: SegmentView) -> str:
    parts = ["large" if segment.large else "small", "expandable" if segment.expandable else ""]
    parts += [f"stream {segment.stream:#x}" if segment.stream else "", _private(segment)]
    return ", ".join(part for part in parts if part)


def _private(segment: SegmentView) -> str:
    return "" if segment.pool_id == (0, 0) else f"private pool {segment.pool_id[0]}.{segment.pool_id[1]}"
