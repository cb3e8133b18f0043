"""Short-lived tensors take most of the memory.

What it means
    At that moment one operation, or a few in a row, needs more than anything that is kept: intermediate results in
    backward, in a hand-written optimizer, or outside any module.

Evidence used
    Recorded categories; in a bare snapshot blocks that are freed in the phase that made them. The lines that made
    them are named; the stacks of backward often end in the engine, so the line is that of `backward()` or missing.

Example
    Backward of a softmax written by hand over a 16,384 x 8,192 matrix: five matrices of 512 MiB for one that is
    kept.

Known limits
    Why an operation needs them is not in a snapshot.

What the remedies change
    Fused operations (torch.nn.functional's own softmax, norm, attention and loss) make no intermediate results; a
    smaller batch divides them.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, is_largest, named_elsewhere, share
from .text import count, moment, percent, size

CODE = "OOM024"
NAME = "temporaries-dominate"
REMEDIES = ("smaller-batch", "gradient-accumulation", "flash-attention", "chunked-loss")
GENERAL = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.TEMPORARY)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"] or not is_largest(case, total):
        return None
    largest = max(block.requested_bytes for block in blocks.values())
    title = f"Short-lived tensors hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    more = named_elsewhere(case, Category.TEMPORARY, total)
    return claim(
        case, blocks, title, thresholds, [*more, f"{count(len(blocks), 'tensor')}, the largest {size(largest)}"]
    )
