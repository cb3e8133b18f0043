"""Workspace of cuDNN's tiled FFT convolution, the greediest plan that `cudnn.benchmark` may try.

The library does not answer for it without a GPU. The spectra of 32 x 32 tiles of input, weight and output are
32 x 17 complex floats each (the inputs are real); a tile gives 33 - filter outputs in each dimension. That is what
published logs of cuDNN show to the byte: 28 x 28 pixels to 20 channels by 5 x 5 takes 178,432 bytes (mnistCUDNN, cuDNN
8 and 9.10), 128 of them to 32 channels 18,522,112.
"""

from math import prod

from .cudnn_plans import Dtype, Problem

TILE = 32
SPECTRUM = 8 * TILE * (TILE // 2 + 1)  # bytes of one tile


def tiling_bytes(problem: Problem) -> int:
    """0 where the algorithm is not offered (cudnnConvolutionForward's table of supported cases)."""
    filters = problem.weight[2:]
    offered = (
        len(filters) == 2
        and problem.dtype in (Dtype.FLOAT, Dtype.HALF)
        and not problem.channels_last
        and max(filters) <= TILE
        and max(problem.dilation) == 1
        and max(problem.stride) <= (2 if max(filters) == 1 else 1)
        and all(padding < size for padding, size in zip(problem.padding, filters, strict=True))
    )
    if not offered:
        return 0
    tiles = prod(-(-size // (TILE + 1 - each)) for size, each in zip(problem.y[2:], filters, strict=True))
    maps = problem.x[0] * (problem.x[1] + problem.y[1])
    return SPECTRUM * (maps * tiles + prod(problem.weight[:2]))
