"""Activations take most of the memory.

What it means
    What forward keeps for backward is the largest thing on the card. It grows with the batch and the sequence (and
    with its square where attention scores are kept), and it is gone after backward.

Evidence used
    Recorded categories and modules; in a bare snapshot the forward frames of each block, and for older blocks the
    phase that freed them. Bytes are grouped by the user's line and by module, layers joined.

Example
    A 2.7B transformer at context 512 keeps 28 GiB of activations at the top of forward, 40 % of its peak.

Known limits
    A block that a forward makes and does not save for backward counts as long as it lives. Recomputation of
    activation checkpointing is known from its frames.

What the remedies change
    activation-checkpointing keeps the inputs of blocks and computes the rest again (about a third more time per
    step); gradient-accumulation and a smaller batch divide them; mixed-precision halves most of them;
    flash-attention removes the scores.
"""

from collections.abc import Mapping

from .call_sites import like_module, module_label
from .interface import Case, Category, Claim
from .judging import bytes_of, claim, held_by_line, is_largest, named_elsewhere, share
from .text import moment, percent, size

CODE = "OOM004"
NAME = "activations-dominate"
REMEDIES = ("activation-checkpointing", "mixed-precision", "gradient-accumulation", "smaller-batch")
GENERAL = True
MAX_MODULES = 3


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.ACTIVATION)
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
    return claim(case, blocks, title, thresholds, evidence)
