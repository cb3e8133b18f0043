"""The logits and the loss hold much of the memory.

What it means
    The head projects every position onto the whole vocabulary: batch x sequence x vocabulary values, often once
    more in fp32, once as log-softmax and once as gradient. Few tensors, each huge. Checkpointing the blocks does
    not touch them, because the peak lies after the last block.

Evidence used
    Live blocks made by cross entropy or log-softmax, and the few others of the same, half or double size beside
    them.

Example
    1,024 tokens x 50,000 entries in fp32 are 195 MiB; forward and loss keep three to four of them, eight
    checkpointed chunks 80 MiB altogether.

Known limits
    A loss written with other operations than cross entropy or log-softmax, in functions with other names, is
    reported as activations. Shapes are not in a snapshot, so the vocabulary is not named.

What the remedies change
    chunked-loss computes head and loss piece by piece and never holds all logits; fewer tokens per micro-batch
    divides them; a loss on the needed positions only is the cheapest of all.
"""

from collections.abc import Mapping

from ..allocator.config import MIN_BLOCK
from .attribution.signs import Sign
from .interface import Case, Category, Claim, LiveBlock
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM008"
NAME = "logits-spike"
REMEDIES = ("chunked-loss", "gradient-accumulation", "smaller-batch")


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    candidates = case.live(Category.ACTIVATION, Category.TEMPORARY)
    by_loss = {b.requested_bytes for b in candidates.values() if b.signs & Sign.LOSS}
    oom = case.profile.oom
    if oom is not None and oom.signs & Sign.LOSS:
        by_loss |= {b.requested_bytes for b in candidates.values() if _same(b.requested_bytes, oom.requested_bytes)}
    large = {s for s in by_loss if share(case.profile, s) >= thresholds["min_block_share"]}
    if not large:
        return None
    family = {related for s in large for related in (s, 2 * s, s // 2)}
    blocks: dict[int, LiveBlock] = {i: b for i, b in candidates.items() if b.requested_bytes in family}
    total = bytes_of(blocks.values())
    failed = oom.requested_bytes if oom is not None and any(_same(s, oom.requested_bytes) for s in large) else 0
    part = (total + failed) / (case.profile.live_bytes + failed)
    if part < thresholds["min_share"] or len(blocks) > thresholds["max_blocks"]:
        return None
    evidence = [
        f"{count(len(blocks), 'tensor')}, the largest {size(max(b.requested_bytes for b in blocks.values()))}",
        "they come after the last block, so activation checkpointing of the blocks leaves them as they are",
    ]
    if failed:
        evidence.insert(0, f"the request that failed, {size(failed)}, is one more of them: {percent(part)} with it")
    held = share(case.profile, total)
    title = f"Logits and loss hold {size(total)}, {percent(held)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, evidence)


def _same(requested: int, failed: int) -> bool:
    """The size of the request that failed (which the allocator rounds up to 512), its half or its double."""
    return any(0 <= failed - related < MIN_BLOCK for related in (requested, 2 * requested, requested // 2))
