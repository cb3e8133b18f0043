"""The price of computing again, and of computing in another precision, as factors of the step time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..interface import Band

if TYPE_CHECKING:
    from ..estimating import Case

# Full activation checkpointing of all blocks: step time over that without. One forward is a third of the arithmetic
# of a step (backward is two); what is memory-bound or overlapped makes it less, small kernels make it more.
# Measured: 1.186 Llama-3-8B FSDP 8 x H100 (torchao), 1.272 Llama-3.2-3B A100 (torchtune), 1.294 bert-large V100
# (transformers), 1.39 a 22B layer (arXiv 2205.05198).
FULL_RECOMPUTE = Band(low=1.18, expected=1.27, high=1.40)


def recompute_factor(case: "Case", *, paths: Sequence[str]) -> Band:
    """For running the forward of the blocks at `paths` once more.

    Their share of the forward's arithmetic is taken as their share of the parameters that multiply (all but
    embedding tables): a matrix product costs two operations per parameter and token.
    """
    owned = case.facts.parameter_bytes_of_module
    multiplying = {
        path: n for path, n in owned.items() if not case.facts.class_of.get(path, "").startswith("Embedding")
    }
    total = sum(multiplying.values())
    inside = sum(n for path, n in multiplying.items() if any(path == p or path.startswith(p + ".") for p in paths))
    share = inside / total if total else 1.0
    return Band(
        low=1 + (FULL_RECOMPUTE.low - 1) * share,
        expected=1 + (FULL_RECOMPUTE.expected - 1) * share,
        high=1 + (FULL_RECOMPUTE.high - 1) * share,
    )


def scaled(band: Band, by: Band) -> Band:
    return Band(low=band.low * by.low, expected=band.expected * by.expected, high=band.high * by.high)
