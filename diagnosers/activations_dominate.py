"""Activations take most of the memory.

What it means
    What forward keeps for backward is the largest thing on the card. It grows with the batch and the sequence (and
    with its square where attention scores are kept), and it is gone after backward.

Evidence used
    Recorded categories and modules; in a bare snapshot the forward frames of each block, and for older blocks the
    phase that freed them. Bytes are grouped by the user's line and by module, layers joined. Graphs of several forwards
    that wait for one backward are counted, where each forward has an input of its own.

Example
    A 2.7B transformer at context 512 keeps 28 GiB of activations at the top of forward, 40 % of its peak.

Known limits
    What a forward drops again before it ends is not among them (OOM024); in a first forward that fails half way nobody
    knows yet what it would have kept. Recomputation of activation checkpointing is known from its frames.

What the remedies change
    activation-checkpointing keeps the inputs of blocks and computes the rest again (about a third more time per
    step); gradient-accumulation and a smaller batch divide them; mixed-precision halves most of them;
    flash-attention removes the scores. Losses that are summed up for one backward: call `backward()` for each, which
    frees its graph before the next is made; the gradients add up by themselves. compute-in-chunks where a few tensors
    of a loss hold most (all triplets of a batch, one-hot targets): rows or classes one after the other, only sums kept,
    each piece checkpointed; or a loss that needs less (class indices, chosen pairs). Gradients of each sample (vmap of
    grad, Opacus) grow with the batch: accumulate.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from .attribution.facts import gather
from .attribution.phases import BACKWARD, FORWARD, run_starts
from .attribution.signs import Sign
from .call_sites import like_module, module_label
from .interface import Case, Category, Claim, DeviceProfile, LiveBlock
from .judging import bytes_of, claim, held_by_line, is_largest, named_elsewhere, of_kind, share
from .serving import serves
from .text import count, moment, percent, size

CODE = "OOM004"
NAME = "activations-dominate"
REMEDIES = (
    "activation-checkpointing",
    "mixed-precision",
    "gradient-accumulation",
    "smaller-batch",
    "compute-in-chunks",
)
GENERAL = True
MAX_MODULES = 3


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = of_kind(case, Category.ACTIVATION)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"] or not is_largest(case, total):
        return None
    modules: dict[str, int] = {}
    for block in blocks.values():
        name = like_module(block.module)
        if name:
            modules[name] = modules.get(name, 0) + block.requested_bytes
    largest = sorted(modules, key=lambda name: -modules[name])[:MAX_MODULES]
    held = {(row.module, row.bytes) for row in held_by_line(case.profile, blocks.values())}
    evidence = [
        f"{size(modules[name])} in {module_label(name)}" for name in largest if (name, modules[name]) not in held
    ]
    evidence += named_elsewhere(case, Category.ACTIVATION, total)
    title = f"Activations hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    said, remedies = _what_helps(case, blocks, total, thresholds)
    return claim(case, blocks, title, thresholds, [*said, *evidence], remedies)


def _what_helps(
    case: Case, blocks: Mapping[int, LiveBlock], total: int, thresholds: Mapping[str, float]
) -> tuple[list[str], tuple[str, ...]]:
    """What evidence there is that another remedy than checkpointing comes first, and the remedies."""
    checkpointing, precision, accumulation, smaller, chunks = REMEDIES
    if serves(case.profile) and len(blocks) <= thresholds["few_blocks"]:
        return ["nothing is trained: these are what forwards return"], (smaller, chunks)
    forwards = _waiting(case.profile, blocks)
    if forwards >= thresholds["min_waiting"]:
        said = f"the graphs of {forwards} forwards, each with an input of its own, wait for one backward"
        return [said], (accumulation, checkpointing, precision, smaller)
    most = sorted(blocks.values(), key=lambda block: -block.requested_bytes)[: int(thresholds["few_blocks"])]
    outside = [block for block in most if block.module is None and block.birth_phase == "other"]
    if bytes_of(outside) >= thresholds["outside_share"] * total:
        said = f"{size(bytes_of(outside))} are {count(len(outside), 'tensor')} made outside any module"
        return [f"{said}: checkpointing the model's blocks leaves them"], (chunks, smaller, precision)
    backward = bytes_of(block for block in blocks.values() if block.birth_phase == "backward")
    if backward > total / 2 and not any(block.signs & Sign.RECOMPUTE for block in blocks.values()):
        said = f"{size(backward)} were made by a backward, whose graph is kept or that works on each sample"
        return [said], (accumulation, smaller, precision, checkpointing)
    return [], REMEDIES[:4]


def _waiting(profile: DeviceProfile, blocks: Mapping[int, LiveBlock]) -> int:
    """From how many calls the line that holds most has tensors, if as many inputs were made; else 0."""
    facts = gather(profile.snapshot, profile.device_snapshot)
    starts, backwards = run_starts(facts.phases, FORWARD), run_starts(facts.phases, BACKWARD)

    def calls(births: Iterable[int]) -> int:
        return len(set(np.searchsorted(starts, sorted(births), side="right").tolist()))

    by_stack: dict[tuple[int, int], list[LiveBlock]] = {}
    for block in blocks.values():
        if block.birth >= 0 and block.birth_phase == "forward":
            before = int(np.searchsorted(backwards, block.birth))
            by_stack.setdefault((before, block.stack), []).append(block)
    if not by_stack:
        return 0
    (before, _), most = max(by_stack.items(), key=lambda item: bytes_of(item[1]))
    inputs = [b.birth for b in profile.live if b.category is Category.INPUT and b.birth >= 0]
    inputs = [birth for birth in inputs if int(np.searchsorted(backwards, birth)) == before]
    forwards = calls(block.birth for block in most)
    return forwards if calls(inputs) >= forwards - 1 else 0
