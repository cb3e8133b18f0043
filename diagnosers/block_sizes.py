"""Block bytes, the unit of `max_memory_allocated`: exact where the replay of the trace is, else rounded requests."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..snapshots.model import DeviceSnapshot
from .attribution.facts import Facts
from .layout import ROUNDING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    bytes: NDArray[np.int64]  # by row of Facts
    peak_allocated: int | None  # highest of the trace; None where the replay is not exact
    problems: tuple[str, ...] = ()


def block_sizes(device: DeviceSnapshot, settings: Mapping[str, object], facts: Facts) -> BlockSizes:
    """Blocks of the dump carry their size; for those freed before it the request is rounded up to 512 bytes."""
    lives = facts.lives
    rounded = np.maximum(-(-facts.requested // ROUNDING_BYTES), 1) * ROUNDING_BYTES
    at_dump = lives.block >= 0
    rounded[at_dump] = device.blocks.size[lives.block[at_dump]]
    return BlockSizes(bytes=rounded, peak_allocated=None)
