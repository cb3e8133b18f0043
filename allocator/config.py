"""The allocator's settings, as one frozen record, and the size arithmetic that depends on them alone.

Names and defaults follow PyTorch's PYTORCH_CUDA_ALLOC_CONF (c10/core/AllocatorConfig.h and
c10/cuda/CUDAAllocatorConfig.h). All sizes are bytes.
"""

from dataclasses import dataclass

MIB = 1 << 20
MIN_BLOCK = 512  # kMinBlockSize: every request is rounded up to a multiple
SMALL_SIZE = MIB  # kSmallSize: up to here a rounded request uses the small pool
SMALL_BUFFER = 2 * MIB  # kSmallBuffer: one small segment; the page of a small expandable segment
LARGE_BUFFER = 20 * MIB  # kLargeBuffer: default of large_segment_size_mb
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own
ROUND_LARGE = 2 * MIB  # kRoundLarge: such a segment is a multiple of this
ROUNDUP_INTERVALS = 16  # buckets of roundup_power2_divisions: 1 MiB, 2 MiB, ... 32 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """Allocator settings. The defaults are PyTorch's own.

    `max_split_size` None = unlimited. `roundup_divisions` has one power of two (0 or 1 = off) per bucket of request
    sizes 1 MiB, 2 MiB, ... 32 GiB. `memory_fraction` None = set_per_process_memory_fraction was never called.
    """

    max_split_size: int | None = None
    max_non_split_rounding: int = LARGE_BUFFER
    garbage_collection_threshold: float = 0.0
    roundup_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    expandable_segments: bool = False
    large_segment_size: int = LARGE_BUFFER
    memory_fraction: float | None = None

    def round_size(self, size: int) -> int:
        """Bytes of the block that a request of `size` bytes asks for (before any unsplit rest)."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self.roundup_divisions[min(max(size.bit_length() - 21, 0), ROUNDUP_INTERVALS - 1)]
        if divisions > 1 and size > MIN_BLOCK * divisions:
            return _next_division(size, divisions)
        return (size + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK

    def segment_size(self, rounded: int) -> int:
        """Bytes that cudaMalloc is asked for when no cached block serves a rounded request."""
        if rounded <= SMALL_SIZE:
            return SMALL_BUFFER
        if rounded < MIN_LARGE_ALLOC:
            return self.large_segment_size
        return (rounded + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


def _next_division(size: int, divisions: int) -> int:
    """`size` rounded up to the next of `divisions` equal steps between two powers of two."""
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor * 2
    return (size + step - 1) // step * step
