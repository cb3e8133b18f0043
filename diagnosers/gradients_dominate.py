"""Gradients take most of the memory.

What it means
    One gradient per trainable parameter, in the parameter's dtype, is alive from backward until it is set to None.
    More than that many bytes means that gradients are kept twice: unsharded under FSDP's no_sync, stashed in a list
    per micro-batch, or held in DDP's buckets beside `.grad`.

Evidence used
    Recorded categories; in a bare snapshot the AccumulateGrad frame, or being born in backward and outliving it.
    The ratio of gradient bytes to parameter bytes is printed.

Example
    A 26B model under FSDP with accumulation kept 52 GB of full gradients per rank instead of 3.25 GB sharded ones
    (torchtnt pull 1057).

Known limits
    A trace that ends inside a backward shows only the gradients made so far. Frozen parameters have none, so a
    ratio below one is normal for LoRA.

What the remedies change
    sync-gradients: with FSDP, synchronise in every micro-batch (no `no_sync`, `set_requires_gradient_sync(True)`,
    accelerate's sync_each_batch): gradients are accumulated in their shards, for one reduce-scatter each.
    accumulate-in-place: add each micro-batch's gradients to `.grad` as they come, instead of keeping a list of them.
    fsdp shards gradients too; bf16 weights have bf16 gradients.
"""

from collections.abc import Mapping

from .attribution.steps import mark_at
from .interface import Case, Category, Claim, LiveBlock
from .judging import bytes_of, claim, is_largest, share
from .text import moment, percent, size

CODE = "OOM002"
NAME = "gradients-dominate"
REMEDIES = ("fsdp", "mixed-precision", "cpu-offload", "sync-gradients", "accumulate-in-place")
GENERAL = True


def _stashed(case: Case) -> dict[int, LiveBlock]:
    """Made by an earlier backward, as large as (whole) parameters, in no `.grad`: a list of them, or FSDP's no_sync."""
    profile = case.profile
    if profile.recording is None or not profile.recording.marks:
        return {}  # inferred categories call them gradients already
    world = profile.snapshot.recording.world_size if profile.snapshot.recording else 1
    mark = mark_at(profile.recording.marks, (profile.oom or profile.peak).event)
    held = {b.requested_bytes for b in profile.live if b.category is Category.PARAMETER}
    # FSDP reduces each whole gradient as it comes: those that stay were kept, whichever backward made them
    whole = {world * size for size in held} if _sharded(case) else set()
    return {
        index: block
        for index, block in case.live(Category.TEMPORARY).items()
        if mark is not None
        and block.birth_phase == "backward"
        and (block.requested_bytes in whole or (block.birth < mark.event and block.requested_bytes in held))
    }


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    stashed = _stashed(case)
    blocks = {**case.live(Category.GRADIENT), **stashed}
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    parameters = case.profile.bytes_of(Category.PARAMETER)
    doubled = parameters > 0 and total >= thresholds["doubled_ratio"] * parameters
    if part < thresholds["min_share"] or not (doubled or is_largest(case, total)):
        return None
    evidence = []
    if parameters:
        evidence.append(f"{total / parameters:.2f} bytes of gradients per byte of parameters")
    if doubled:
        evidence.append("more than one gradient per parameter: kept in a list, unsharded, or in buckets beside .grad")
    title = f"Gradients hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    first: tuple[str, ...] = ()
    if doubled and stashed:
        first = ("sync-gradients",) if _sharded(case) else ("accumulate-in-place",)
    return claim(case, blocks, title, thresholds, evidence, (*first, *REMEDIES[:3]))


def _sharded(case: Case) -> bool:
    recording = case.profile.snapshot.recording
    parameters = recording.facts.get("parameters") if recording else None
    return isinstance(parameters, Mapping) and bool(parameters.get("sharded"))
