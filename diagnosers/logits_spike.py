"""The logits and the loss hold much of the memory.

What it means
    The head projects every position onto the whole vocabulary: batch x sequence x vocabulary values, often once
    more in fp32, once as log-softmax and once as gradient. Few tensors, each huge. Checkpointing the blocks does
    not touch them, because the peak lies after the last block.

Evidence used
    Live blocks made by cross entropy or log-softmax, and the few others of the same, half or double size beside
    them. A loss in other words (`logits.log_softmax(-1)` has no frame of its own): what a linear layer makes, several
    times as large as all that the forward made before it, and nothing but far smaller things come after.

Example
    1,024 tokens x 50,000 entries in fp32 are 195 MiB; forward and loss keep three to four of them, eight
    checkpointed chunks 80 MiB altogether.

Known limits
    Shapes are not in a snapshot, so the vocabulary is not named. A loss in other words over few classes (under 256) is
    reported as activations.

What the remedies change
    chunked-loss computes head and loss piece by piece and never holds all logits; fewer tokens per micro-batch
    divides them; a loss on the needed positions only is the cheapest of all.
    needed-logits: where nothing is trained, a prompt's last position is all that the next token needs
    (`logits_to_keep=1` in transformers); of the scores of a text, the positions in pieces (compute-in-chunks).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..allocator.config import MIN_BLOCK
from .attribution.facts import Facts, gather
from .attribution.phases import BACKWARD, FORWARD, OTHER, run_starts
from .attribution.signs import Sign
from .interface import Case, Category, Claim, DeviceProfile, LiveBlock
from .judging import bytes_of, claim, share
from .serving import serves
from .text import count, moment, percent, size

CODE = "OOM008"
NAME = "logits-spike"
REMEDIES = ("chunked-loss", "gradient-accumulation", "smaller-batch", "needed-logits", "compute-in-chunks")
SHIFTED = 0.1  # logits and labels are shifted against each other: one position fewer, of ten at least


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    candidates = case.live(Category.ACTIVATION, Category.TEMPORARY)
    by_loss = {b.requested_bytes for b in candidates.values() if b.signs & Sign.LOSS}
    oom = case.profile.oom
    if oom is not None and oom.signs & Sign.LOSS:
        by_loss |= {b.requested_bytes for b in candidates.values() if _same(b.requested_bytes, oom.requested_bytes)}
    by_loss |= _by_the_head(case.profile, thresholds)
    large = {s for s in by_loss if share(case.profile, s) >= thresholds["min_block_share"]}
    if not large:
        return None
    family = {related for s in large for related in (s, 2 * s, s // 2)}
    blocks: dict[int, LiveBlock] = {i: b for i, b in candidates.items() if b.requested_bytes in family}
    total = bytes_of(blocks.values())
    failed = oom.requested_bytes if oom is not None and any(_same(s, oom.requested_bytes) for s in large) else 0
    part = (total + failed) / (case.profile.live_bytes + failed)
    if not blocks or part < thresholds["min_share"] or len(blocks) > thresholds["max_blocks"]:
        return None
    evidence = [f"{count(len(blocks), 'tensor')}, the largest {size(max(b.requested_bytes for b in blocks.values()))}"]
    if serves(case.profile):
        evidence.append("nothing is trained: if this is a prompt, its last position alone is needed")
        remedies: tuple[str, ...] = REMEDIES[3:]
    else:
        evidence.append(
            "they come after the last block, so activation checkpointing of the blocks leaves them as they are"
        )
        remedies = REMEDIES[:3]
    if failed:
        evidence.insert(0, f"the request that failed, {size(failed)}, is one more of them: {percent(part)} with it")
    held = share(case.profile, total)
    title = f"Logits and loss hold {size(total)}, {percent(held)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, evidence, remedies)


def _by_the_head(profile: DeviceProfile, thresholds: Mapping[str, float]) -> set[int]:
    """Sizes like that of the last and largest thing that a forward makes, where a linear layer makes it; else none.

    Which line that is, the last forward tells that came to its backward; where nothing is trained, all that was made.
    """
    facts = gather(profile.snapshot, profile.device_snapshot)
    moment = (profile.oom or profile.peak).event
    backwards = run_starts(facts.phases, BACKWARD)
    backwards = backwards[backwards <= moment]
    mine = np.isin(facts.birth_phase, (FORWARD, OTHER)) & (facts.lives.birth <= moment)
    before = np.searchsorted(backwards, facts.lives.birth)  # the number of backwards
    whole = (before < len(backwards)) | serves(profile)  # of a job that trains, forwards with a backward
    for number in np.unique(before[mine & whole])[::-1].tolist():
        stack = _head(facts, mine & (before == number), thresholds)
        if stack is not None:
            latest = mine & (facts.lives.alloc_stack == stack)
            logits = int(facts.requested[latest & (before == before[latest].max())].max())
            return set(facts.requested[_alike(facts, logits)].tolist())
        if (mine & (before == number) & ((facts.signs & Sign.PROJECTION) != 0)).any():
            break
    return set()


def _head(facts: Facts, made: NDArray[np.bool_], thresholds: Mapping[str, float]) -> int | None:
    """The stack of such a linear layer in one forward, whose blocks are `made`."""
    rows = np.flatnonzero(made & ((facts.signs & Sign.PROJECTION) != 0))
    if not len(rows):
        return None
    logits, birth = int(facts.requested[rows].max()), facts.lives.birth
    alike = _alike(facts, logits)
    heads = rows[alike[rows]]
    if len(np.unique(facts.run[heads])) < len(heads):
        return None  # layers
    head = int(heads[birth[heads].argmax()])  # the last: another model's may come first
    others = made & ~alike
    before = int(facts.requested[others & (birth < birth[head])].max(initial=0))
    after = int(facts.requested[others & (birth > birth[head])].max(initial=0))
    told = logits >= thresholds["head_ratio"] * before and logits >= thresholds["reduction"] * after
    return int(facts.lives.alloc_stack[head]) if told else None


def _alike(facts: Facts, logits: int) -> NDArray[np.bool_]:
    off = [np.abs(facts.requested / (part * logits) - 1) for part in (0.5, 1, 2)]
    result: NDArray[np.bool_] = np.min(off, axis=0) <= SHIFTED
    return result


def _same(requested: int, failed: int) -> bool:
    """The size of the request that failed (which the allocator rounds up to 512), its half or its double."""
    return any(0 <= failed - related < MIN_BLOCK for related in (requested, 2 * requested, requested // 2))
