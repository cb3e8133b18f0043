"""Block bytes, the unit of `max_memory_allocated`: from the layout of the recording, else rounded requests."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..allocator.config import MIN_BLOCK, AllocConfError, from_snapshot_settings
from ..allocator.tiling import block_bytes
from ..snapshots.model import DeviceSnapshot, Snapshot
from ..snapshots.timeline import live_bytes
from .attribution.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    bytes: NDArray[np.int64]  # by row of Facts
    exact: bool
    peak_allocated: int | None  # highest of the trace; None where block sizes are not known
    problems: tuple[str, ...] = ()


def block_sizes(device: DeviceSnapshot, snapshot: Snapshot, facts: Facts) -> BlockSizes:
    """Blocks of the dump carry their size; those freed before it have the layout's, else the request rounded up."""
    try:
        found = block_bytes(device, facts.lives, from_snapshot_settings(snapshot.settings))
    except AllocConfError as error:
        return _rounded(device, facts, f"the allocator settings of the snapshot cannot be read ({error})")
    if found.contradictions:
        reason = f"{found.contradictions} blocks of the dump have another size than the CUDA allocator would give them"
        return _rounded(device, facts, reason)
    requested = int(live_bytes(device).max())
    if found.peak_allocated < requested:  # a block cannot be smaller than what was asked for
        return _rounded(device, facts, f"a peak of {found.peak_allocated} bytes is below the {requested} requested")
    problems = (_rest(found.uncertain, found.peak_allocated),) if found.uncertain else ()
    return BlockSizes(
        bytes=found.bytes, exact=not found.uncertain, peak_allocated=found.peak_allocated, problems=problems
    )


def _rounded(device: DeviceSnapshot, facts: Facts, reason: str) -> BlockSizes:
    sizes = np.maximum(-(-facts.requested // MIN_BLOCK), 1) * MIN_BLOCK
    at_dump = facts.lives.block >= 0
    sizes[at_dump] = device.blocks.size[facts.lives.block[at_dump]]
    problem = f"device {device.device}: {reason}: allocated bytes are not known"
    return BlockSizes(bytes=sizes, exact=False, peak_allocated=None, problems=(problem,))


def _rest(uncertain: int, peak_allocated: int) -> str:
    """An unsplit rest is at most 1 MiB: should_split of CUDACachingAllocator.cpp."""
    part = 100 * uncertain * (1 << 20) / max(peak_allocated, 1)
    return (
        f"the allocated bytes may be up to {uncertain} MiB ({part:.2f} %) higher: blocks older than the recording can"
        " have an unsplit rest that it does not show"
    )
