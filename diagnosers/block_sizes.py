"""Block bytes, the unit of `max_memory_allocated`: exact where the replay of the trace is, else rounded requests."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..allocator.config import AllocConfError
from ..allocator.replay import Replay, replay
from ..snapshots.model import DeviceSnapshot, Snapshot
from .attribution.facts import Facts
from .layout import ROUNDING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    bytes: NDArray[np.int64]  # by row of Facts
    exact: bool
    peak_allocated: int | None  # highest of the trace; None where the replay is not exact
    problems: tuple[str, ...] = ()


def block_sizes(device: DeviceSnapshot, snapshot: Snapshot, facts: Facts) -> BlockSizes:
    """Blocks of the dump carry their size; those freed before it have the replay's, else the request rounded up."""
    lives = facts.lives
    sizes = np.maximum(-(-facts.requested // ROUNDING_BYTES), 1) * ROUNDING_BYTES
    at_dump = lives.block >= 0
    sizes[at_dump] = device.blocks.size[lives.block[at_dump]]
    if not len(device.trace):
        return BlockSizes(bytes=sizes, exact=True, peak_allocated=int(sizes.sum()))
    found, problem = _replay(device, snapshot)
    if found is None:
        return BlockSizes(bytes=sizes, exact=False, peak_allocated=None, problems=(problem,))
    recorded = lives.birth >= 0
    sizes[recorded] = found.block_bytes[lives.birth[recorded]]
    by_address = {block.address: block.size for block in found.older_blocks}
    for row in np.flatnonzero(~recorded).tolist():
        sizes[row] = by_address.get(int(lives.address[row]), sizes[row])
    uncertain = len(found.uncertain_blocks)
    problems = (_rest(uncertain, found.peak_allocated),) if uncertain else ()
    return BlockSizes(bytes=sizes, exact=not uncertain, peak_allocated=found.peak_allocated, problems=problems)


def _rest(uncertain: int, peak_allocated: int) -> str:
    """An unsplit rest is at most 1 MiB: should_split of CUDACachingAllocator.cpp."""
    part = 100 * uncertain * (1 << 20) / max(peak_allocated, 1)
    return (
        f"the allocated bytes may be up to {uncertain} MiB ({part:.2f} %) higher: blocks older than the recording can"
        " have an unsplit rest that it does not show"
    )


def _replay(device: DeviceSnapshot, snapshot: Snapshot) -> tuple[Replay | None, str]:
    try:
        found = replay(device, snapshot.settings, snapshot.stacks)
    except AllocConfError as error:
        return None, f"the allocator settings of the snapshot cannot be read ({error}): allocated bytes are not known"
    if not found.exact:
        where = f" (first at event {found.departure.event}: {found.departure.reason})" if found.departure else ""
        return None, f"the allocator model does not reproduce this recording{where}: allocated bytes are not known"
    return found, ""
