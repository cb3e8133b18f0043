"""Short-lived tensors take most of the memory.

What it means
    At that moment one operation, or a few in a row, needs more than anything that is kept: intermediate results of a
    forward without gradients (a whole image or volume at once, all pairs of two sets), in backward, in a hand-written
    optimizer, or outside any module.

Evidence used
    Recorded categories; in a bare snapshot blocks that are freed in the phase that made them. Of a forward, what dies
    before it ends; where it was cut off, what the same line made in earlier forwards tells, or that nothing is trained.
    The lines that made them are named; the stacks of backward often end in the engine, so the line is that of
    `backward()` or missing.

Example
    242,991 anchors x 500 boxes are 460 MiB, and matching them needs about nine such matrices at once
    (maskrcnn-benchmark issue 18). Backward of a softmax written by hand over a 16,384 x 8,192 matrix: five matrices of
    512 MiB for one that is kept.

Known limits
    Why an operation needs them is not in a snapshot.

What the remedies change
    compute-in-chunks: tiles of an image, slices of a set, rows of a matrix one after the other: the results of a piece
    are free before the next (a decoder's tiling, `chunk_size` of torch.func.jacrev and vmap, a loop over rows); the
    numbers are the same, but for what reaches over a tile's border. Fused operations (torch.nn.functional's own
    softmax, norm, attention and loss, torch.cdist) make no intermediate results; a smaller batch divides them. What is
    as large as the largest weight (a classifier of a million identities that is normalised in each step, a table of
    which rows are taken by indexing) only falls with that weight: tensor-parallel, sampling the classes,
    mixed-precision; torch.nn.functional.embedding instead of `weight[ids]`.
"""

from collections.abc import Iterable, Mapping

from .interface import Case, Category, Claim, DeviceProfile, LiveBlock
from .judging import bytes_of, claim, is_largest, named_elsewhere, of_kind, share
from .text import count, moment, percent, size

CODE = "OOM024"
NAME = "temporaries-dominate"
REMEDIES = (
    "compute-in-chunks",
    "smaller-batch",
    "gradient-accumulation",
    "flash-attention",
    "chunked-loss",
    "tensor-parallel",
    "mixed-precision",
)
GENERAL = True
_OUTSIDE = ("setup", "other")  # of any model: operations of the script itself


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = of_kind(case, Category.TEMPORARY)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"] or not is_largest(case, total):
        return None
    largest = max(block.requested_bytes for block in blocks.values())
    title = f"Short-lived tensors hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    more = named_elsewhere(case, Category.TEMPORARY, total)
    evidence = [*more, f"{count(len(blocks), 'tensor')}, the largest {size(largest)}"]
    dropped = bytes_of(block for block in blocks.values() if block.passing)
    if dropped >= thresholds["in_passing_share"] * total:
        evidence.append("a forward drops them before it ends, so checkpointing leaves them as they are")
        remedies: tuple[str, ...] = REMEDIES[:2]
    elif (like := _like_weights(case.profile, blocks.values())) >= thresholds["like_weights_share"] * total:
        evidence.append(f"{size(like)} of it are as large as a weight: a smaller batch leaves these bytes as they are")
        remedies = REMEDIES[5:]
    else:
        remedies = REMEDIES[:5] if (case.profile.oom or case.profile.peak).phase in _OUTSIDE else REMEDIES[1:5]
    return claim(case, blocks, title, thresholds, evidence, remedies)


def _like_weights(profile: DeviceProfile, blocks: Iterable[LiveBlock]) -> int:
    """Bytes in blocks of a backward that have the size of the largest parameter: its gradient on the way."""
    largest = max((b.requested_bytes for b in profile.live if b.category is Category.PARAMETER), default=0)
    return bytes_of(b for b in blocks if b.birth_phase == "backward" and b.requested_bytes == largest)
