"""What a CUDA reduction allocates beside its result: a staging buffer and semaphores.

When few outputs are made from many inputs, `gpu_reduce_kernel` splits each output over several thread blocks, which
meet in global memory. Whether it does, and how large the meeting place is, follows from the launch configuration
alone. Source: `setReduceConfig` in aten/src/ATen/native/cuda/Reduce.cuh (shipped in the wheel's include folder), and
the dimension order of aten/src/ATen/TensorIterator.cpp. Everything here counts elements unless a name says bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

MAX_THREADS = 512  # ReduceConfig::MAX_NUM_THREADS (256 for complex128, which is not modelled)
WARP = 32
MIN_VALUES_PER_THREAD = 16
MAX_VALUES_PER_THREAD = 256
MAX_32BIT_BYTES = 2**31 - 1  # TensorIterator::can_use_32bit_indexing


@dataclass(frozen=True, slots=True)
class Iteration:
    """A reduction as TensorIterator sees it: reduced dimensions first, neighbours merged, sizes 1 dropped.

    `sizes` and `strides` (input, elements) run from the fastest dimension; the first `reduced` of them are summed away.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    reduced: int

    @property
    def inputs_per_output(self) -> int:
        return prod(self.sizes[: self.reduced])

    @property
    def outputs(self) -> int:
        return prod(self.sizes[self.reduced :])


def iteration(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> Iteration:
    """The dimensions of `shape` reduced over `dims` (empty = all), into a result that is contiguous.

    Reduced dimensions are ordered by the input's strides; kept ones by the result's, which is made contiguous.
    """
    over = {d % len(shape) for d in dims} if dims and shape else set(range(len(shape)))
    real = [d for d in range(len(shape)) if shape[d] != 1]
    reduced = sorted(
        (d for d in reversed(real) if d in over), key=lambda d: (strides[d], shape[d] if strides[d] else 0)
    )
    kept = [d for d in reversed(real) if d not in over]
    first, second = _merge(reduced, shape, strides), _merge(kept, shape, strides)
    return Iteration(
        tuple(size for size, _ in first + second), tuple(stride for _, stride in first + second), len(first)
    )


def _merge(dims: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Join neighbours that step through memory as one dimension would (TensorIterator::coalesce_dimensions)."""
    merged: list[tuple[int, int]] = []
    for d in dims:
        if merged and merged[-1][0] * merged[-1][1] == strides[d]:
            merged[-1] = (merged[-1][0] * shape[d], merged[-1][1])
        else:
            merged.append((shape[d], strides[d]))
    return merged


def workspace_bytes(
    shape: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
    *,
    accumulator_bytes: int,
    sm_count: int,
    threads_per_sm: int,
    storage_offset: int = 0,
    input_vector: int = 4,
) -> tuple[int, int]:
    """(staging, semaphores) in bytes of one reduction kernel; (0, 0) when one block per output does.

    `accumulator_bytes` is the size of the kernel's `arg_t`: 4 for float/half/bfloat16 sums, 16 for value-with-index and
    Welford pairs, 1 for any/all. `input_vector` is its vectorised load: 4; 8 for 16-bit sums of newer torch; 2 for var.
    """
    if prod(shape) == 0:
        return 0, 0
    it = iteration(shape, strides, dims)
    fast = it.reduced == len(it.sizes) or (it.reduced > 0 and it.strides[0] < it.strides[it.reduced])
    if it.reduced == 0 and it.sizes:
        return 0, 0
    outputs, inputs = it.outputs, it.inputs_per_output
    dim0, dim1 = (inputs, outputs) if fast else (outputs, inputs)
    output_vector = 1
    if it.sizes and it.strides[0 if fast else it.reduced] == 1:
        if not fast:
            output_vector = _output_vector(it, storage_offset)
            dim0 //= output_vector
        elif dim0 >= 128 and it.reduced == 1:
            dim0 //= input_vector
    width, height = _block(dim0, dim1, MAX_THREADS // output_vector)

    step_in, step_out = (width, 1) if fast else (1, width)
    across_warps = _ceil(inputs, step_in) >= min(height * MIN_VALUES_PER_THREAD, MAX_VALUES_PER_THREAD)
    if across_warps:
        step_in *= height
    else:
        step_out *= height
    grid = _ceil(outputs // output_vector, step_out)
    target = sm_count * (threads_per_sm // (width * height))
    values = _ceil(inputs, step_in)
    if not (across_warps and values >= MAX_VALUES_PER_THREAD and grid <= target):
        return 0, 0
    blocks = max(min(_ceil(target, grid), _ceil(values, MIN_VALUES_PER_THREAD)), _ceil(values, MAX_VALUES_PER_THREAD))
    if blocks <= 1:
        return 0, 0
    staging = accumulator_bytes * outputs * blocks
    if not fast:
        staging *= width * output_vector
    return staging, 4 * grid


def _output_vector(it: Iteration, storage_offset: int) -> int:
    """How many neighbouring outputs one thread loads at once: the largest of 4, 2, 1 that divides what must align."""
    others = [stride for i, stride in enumerate(it.strides) if i != it.reduced]
    vector = 4
    for number in (storage_offset, it.sizes[it.reduced], *others):
        while number % vector:
            vector //= 2
    return vector


def _block(dim0: int, dim1: int, limit: int) -> tuple[int, int]:
    """(width, height) of the thread block: ReduceConfig::set_block_dimension."""
    wide, high = min(_floor_pow2(dim0), limit), min(_floor_pow2(dim1), limit)
    width = min(wide, WARP)
    height = min(high, limit // width)
    return min(wide, limit // height), height


def _floor_pow2(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 1


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
