"""Attention keeps its score matrices.

What it means
    Scores of batch x heads x sequence x sequence values are kept for backward, several times per layer (scores,
    mask, softmax, dropout). They grow with the square of the sequence: twice the length, four times the bytes.
    Fused attention (flash, memory-efficient, cuDNN) never writes them.

Evidence used
    Live activations made by a softmax that is not the loss, and those (with backward's temporaries) of the same
    size (or a half, a quarter: casts and boolean masks) from the same function or below an attention function or
    module, repeated by layer. And, by recorded modules, what a module makes itself and is eight times as large as
    anything its own layers (the projections) make.

Example
    27,000 tokens with a mask that is not None: the math path of scaled_dot_product_attention asks for 45.6 GiB
    (27,000 squared x 16 heads x 4 B = 43.5 GiB).

Known limits
    A softmax over something else (a gate of experts) of the same size is counted with it. Why the flash path was
    not taken (a mask, fp32, a head size) is not in a snapshot.

What the remedies change
    flash-attention: scaled_dot_product_attention with is_causal instead of a mask, in half precision; then the
    bytes grow with the sequence, not with its square.
"""

from collections import Counter
from collections.abc import Mapping

from .attribution.signs import Sign
from .attribution.stacks import library_location
from .call_sites import like_module
from .interface import Case, Category, Claim, DeviceProfile, LiveBlock
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM009"
NAME = "attention-scores"
REMEDIES = ("flash-attention", "activation-checkpointing", "smaller-batch")


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    mine = case.live(Category.ACTIVATION, Category.TEMPORARY)
    candidates = {i: b for i, b in mine.items() if not b.signs & Sign.LOSS}
    profile = case.profile
    blocks = {
        **_softmaxed(profile, candidates, thresholds),
        **_larger_than_projections(profile, candidates, thresholds),
        **_larger_than_children(candidates, thresholds),
    }
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if not blocks or part < thresholds["min_share"]:
        return None
    largest = max(block.requested_bytes for block in blocks.values())
    evidence = [
        f"{count(len(blocks), 'tensor')}, the largest {size(largest)}; they grow with the square of the sequence"
    ]
    title = f"Attention scores hold {size(total)}, {percent(part)} of what was live {moment(profile)}"
    return claim(case, blocks, title, thresholds, evidence)


def _softmaxed(
    profile: DeviceProfile, candidates: Mapping[int, LiveBlock], thresholds: Mapping[str, float]
) -> dict[int, LiveBlock]:
    """What a softmax made, and its relatives by size and place."""
    softmaxed = [b for b in candidates.values() if b.signs & Sign.SOFTMAX]
    counts = Counter(b.requested_bytes for b in candidates.values())
    large = {s for s in {b.requested_bytes for b in softmaxed} if counts[s] >= thresholds["min_blocks"]}
    functions = {key for b in softmaxed if b.requested_bytes in large for key in _functions(profile, b)}
    family = {related for s in large for related in (s, 2 * s, s // 2, s // 4)}
    return {i: b for i, b in candidates.items() if b.requested_bytes in family and _belongs(profile, b, functions)}


def _larger_than_projections(
    profile: DeviceProfile, candidates: Mapping[int, LiveBlock], thresholds: Mapping[str, float]
) -> dict[int, LiveBlock]:
    """By recorded modules: what an attention module itself makes and is larger than anything its projections make.

    Queries, keys and values have batch x sequence x width values, scores batch x heads x sequence x sequence.
    """
    projected: dict[str, int] = {}
    own: dict[str, list[int]] = {}
    for index, block in candidates.items():
        head = _attention_module(block.module)
        if head is None:
            continue
        if block.module == head:
            own.setdefault(head, []).append(index)
        else:
            projected[head] = max(projected.get(head, 0), block.requested_bytes)
    for head, indices in own.items():
        if head not in projected and "." not in head:
            projected[head] = _largest_called(profile, candidates, indices)
    found = {
        i: candidates[i]
        for head, indices in own.items()
        for i in indices
        if projected.get(head)
        and candidates[i].requested_bytes >= thresholds["larger_than_projections"] * projected[head]
    }
    return found if len(found) >= thresholds["min_blocks"] else {}


def _larger_than_children(candidates: Mapping[int, LiveBlock], thresholds: Mapping[str, float]) -> dict[int, LiveBlock]:
    """Without a name that says so: what a module makes itself, many times as large as anything its layers make."""
    made: dict[str | None, int] = {}
    for block in candidates.values():
        parent = like_module(block.module.rpartition(".")[0]) if block.module else ""
        if parent:
            made[parent] = max(made.get(parent, 0), block.requested_bytes)
    least = thresholds["larger_than_children"]
    found = {
        i: block
        for i, block in candidates.items()
        if block.requested_bytes >= least * made.get(like_module(block.module), block.requested_bytes)
    }
    return found if len(found) >= thresholds["min_blocks"] else {}


def _largest_called(profile: DeviceProfile, candidates: Mapping[int, LiveBlock], own: list[int]) -> int:
    """Of what other modules made for the functions of these: the children of a module that is a root have no prefix."""
    functions = {key for index in own for key in _functions(profile, candidates[index])}
    others = (block for block in candidates.values() if _attention_module(block.module) is None)
    return max((block.requested_bytes for block in others if _functions(profile, block) & functions), default=0)


def _attention_module(module: str | None) -> str | None:
    """`layers.3.self_attn.q_proj` -> `layers.3.self_attn`; `attention.0.qkv` -> `attention.0`; None where none is."""
    parts = module.split(".") if module else []
    for index, part in enumerate(parts):
        if "attn" in part.lower() or "attention" in part.lower():
            end = index + 2 if index + 1 < len(parts) and parts[index + 1].isdigit() else index + 1
            return ".".join(parts[:end])
    return None


def _functions(profile: DeviceProfile, block: LiveBlock) -> set[tuple[str, str]]:
    """The function of the user's or a model library's code that called softmax."""
    location = library_location(profile.frames(block))
    return {(location.file, location.function)} if location else set()


def _belongs(profile: DeviceProfile, block: LiveBlock, functions: set[tuple[str, str]]) -> bool:
    """By its stack, its module, or as a temporary of that size that backward made: its stack names no function."""
    if block.signs & (Sign.SOFTMAX | Sign.SCORES) or (block.module is not None and "att" in block.module):
        return True
    if block.category is Category.TEMPORARY:
        return block.birth_phase == "backward"
    return bool(_functions(profile, block) & functions)
