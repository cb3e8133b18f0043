"""Run forward and loss under torch.autocast: products in bfloat16 or float16, parameters stay float32.

Applies when: the parameters are float32, activations are a large share of the peak, and the card has tensor cores
for the type (bfloat16 from compute capability 8.0, float16 from 7.0).
Saves: activations of products and of what follows them take half. Norms, softmax, losses and the residual stream
stay float32; the cast weights (2 bytes for each parameter that multiplies) are saved for backward beside them.
Costs: nothing in time, the opposite (measured step time x 0.42 to 0.85 of float32).
Numerics: equivalent: 8 bits of mantissa (bfloat16) or 11 with loss scaling (float16, GradScaler).
Conflicts: small models with large weights gain little or lose (the casts); float16 needs a GradScaler.
Frameworks: torch.autocast; Hugging Face `bf16: true` or `fp16: true`; DeepSpeed `torch_autocast` or `bf16`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from .autocast_inputs import Read, cast_for_norms, cast_for_products, gradients_cast, read_by_attention, reads
from .autocast_kinds import Kind
from .autocast_rows import kinds_of, last_product, upcasts
from .costs.links import card
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import Iteration, activation_rows, iterations, saved_rows
from .reduction_staging import restaged
from .whatif_timeline import BACKWARD, FORWARD, OTHER, Mask, Timeline

NAME = "mixed-precision"
NUMERICS = Numerics.EQUIVALENT
EFFORT = Effort.SETTING

# hf: x 2.10 fp16 bert-large V100, x 2.39 bf16 t5-base A100; CS336: x 1.18 and x 1.27 bf16 autocast A100
STEP_TIME = Band(low=0.41, expected=0.6, high=0.9)


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if case.facts.autocast or case.timeline.is_category(Category.AUTOCAST_CACHE).any():
        return NotApplicable(NAME, "the forward runs under autocast already")
    if not case.facts.known:
        return NotApplicable(NAME, "the snapshot does not say which module made what: record it with `oomdoc run`")
    known = case.facts.bytes_of_dtype
    if not known:
        return NotApplicable(NAME, "no parameters are known here")
    if 2 * known.get("float32", 0) < sum(known.values()):  # adapters, norms
        return NotApplicable(NAME, "most parameters are not float32: their products are in that type already")
    if case.facts.gathered_dtype in ("bfloat16", "float16"):
        return NotApplicable(NAME, f"FSDP gathers the parameters in {case.facts.gathered_dtype} already")
    spec = card(case.job.gpu)
    dtype = "bfloat16" if spec is None or "bf16" in spec.flops else "float16"
    if spec is not None and not {"bf16", "fp16"} & set(spec.flops):
        return NotApplicable(NAME, f"{spec.title} has no tensor cores for bfloat16 or float16")
    return (Setting(name=NAME, options={"dtype": dtype}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    dtype = str(options.get("dtype", "bfloat16"))
    stacks = case.profile.snapshot.stacks
    kinds = kinds_of(case.timeline, case.facts.class_of, stacks)
    variants = {
        "expected": {Kind.OPEN_HALF},
        "low": {Kind.OPEN_HALF, Kind.OPEN_KEEP},
        "high": set(),
    }
    read = {each: reads(case.timeline, kinds, each, case.facts, stacks) for each in iterations(case.timeline)}
    made = {
        name: _cast(case, kinds, read, {Kind.HALVES, Kind.PRODUCT, Kind.ATTENTION, *halve})
        for name, halve in variants.items()
    }
    activation = activation_rows(case.timeline)
    open_bytes = int(case.timeline.size[activation & (kinds >= Kind.OPEN_HALF)].sum())
    share = open_bytes / max(1, int(case.timeline.size[activation].sum()))
    return Change(
        setting=Setting(name=NAME, options={"dtype": dtype}),
        expected=made["expected"],
        low=made["low"],
        high=made["high"],
        step_time_factor=STEP_TIME,
        time_doubt="published runs took 0.42 to 0.85 of the time, by how much of it are products",
        numerics=NUMERICS,
        why=f"what products and the operations behind them make takes 2 bytes instead of 4 ({dtype} autocast)",
        doubt=f"the type of {share:.0%} of the activation bytes cannot be read from module or source line"
        if share > 0.01
        else "",
    )


def _cast(case: Case, kinds: NDArray[np.int8], read: Mapping[Iteration, list[Read]], halved: set[Kind]) -> Timeline:
    timeline = case.timeline
    activation = activation_rows(timeline)
    scores = _scores(timeline, kinds)
    unfused = np.isin(timeline.module, np.unique(timeline.module[scores])) & (kinds == Kind.ATTENTION)
    masks = masks_of(timeline, kinds, activation & ~unfused)
    half = activation & np.isin(kinds, list(halved)) & ~masks
    half |= _backward_rows(timeline, kinds, halved)
    half[restaged(timeline, 1.0, case.job.gpu)[0]] = False  # sums of gradients add up in float32
    new, stacks = timeline, case.profile.snapshot.stacks
    for iteration, found in read.items():
        new = cast_for_products(new, timeline, kinds, found, iteration, stacks)
        new = cast_for_norms(new, timeline, kinds, found, iteration)
        new = gradients_cast(new, timeline, kinds, iteration)
        half |= read_by_attention(timeline, kinds, iteration)
        new = _weights_cast(new, timeline, kinds, activation, case, iteration)
    new, loss_rows = loss_cast(new, timeline, kinds, case)
    old = np.zeros(len(new), np.bool_)
    old[: len(timeline)] = half & ~loss_rows
    new = new.resized(old, 0.5)
    old[: len(timeline)] = scores | copied_results(timeline, kinds)
    return new.without(old)


def _scores(timeline: Timeline, kinds: NDArray[np.int8]) -> Mask:
    """What float32 attention saved only because no fused kernel took it: a fused one keeps its output and a row sum.

    Told by a saved row that is larger than the call's first: the scores. A fused kernel's first row is its output.
    """
    found = np.zeros(len(timeline), np.bool_)
    for iteration in iterations(timeline):
        inside = (kinds == Kind.ATTENTION) & saved_rows(timeline, iteration)
        for module in np.unique(timeline.module[inside]).tolist():
            rows = np.flatnonzero(inside & (timeline.module == module))
            first = rows[timeline.birth[rows].argmin()]  # of the size of the output: it stands for it
            if (timeline.size[rows] > timeline.size[first]).any():
                found[rows[rows != first]] = True
    return found


def copied_results(timeline: Timeline, kinds: NDArray[np.int8]) -> Mask:
    """What float32 attention's result was copied to at once, to have another order of dimensions.

    The kernels for float32 return (batch, length, heads, size), those for lower types the order of the query: there
    is nothing to copy then (aten/src/ATen/native/transformers/cuda/attention.cu).
    """
    found = np.zeros(len(timeline), np.bool_)
    for iteration in iterations(timeline):
        inside = activation_rows(timeline) & (timeline.birth >= iteration.start)
        rows = np.flatnonzero(inside & (timeline.birth < iteration.backward_start))
        rows = rows[np.argsort(timeline.birth[rows], kind="stable")]
        attention = kinds[rows] == Kind.ATTENTION
        result = -1
        for row, mine in zip(rows.tolist(), attention.tolist(), strict=True):
            if mine:
                result = row if result < 0 else result
                continue
            if result >= 0 and kinds[row] == Kind.OPEN_HALF and timeline.module[row] == timeline.module[result]:
                found[row] = timeline.size[row] == timeline.size[result]
            result = -1
    return found


def masks_of(timeline: Timeline, kinds: NDArray[np.int8], activation: Mask) -> Mask:
    """Rows that are no float of the product's type: dropout masks, statistics, indices.

    Beside a larger row of the same module and iteration, at most a quarter of it.
    """
    largest: dict[tuple[int, int], int] = {}
    rows = np.flatnonzero(activation & (kinds != Kind.KEEPS) & (timeline.module >= 0))
    keys = list(zip(timeline.module[rows].tolist(), timeline.step[rows].tolist(), strict=True))
    for key, size in zip(keys, timeline.size[rows].tolist(), strict=True):
        largest[key] = max(size, largest.get(key, 0))
    found: Mask = activation & (kinds == Kind.MASK)
    found[rows] |= [4 * size <= largest[key] for key, size in zip(keys, timeline.size[rows].tolist(), strict=True)]
    return found


def _backward_rows(timeline: Timeline, kinds: NDArray[np.int8], halved: set[Kind]) -> Mask:
    """Gradients of what became half; weight gradients (the size of a parameter) end as float32."""
    temporary = timeline.is_category(Category.TEMPORARY) & timeline.is_phase(BACKWARD) & (timeline.module >= 0)
    parameters = np.unique(timeline.size[timeline.is_category(Category.PARAMETER)])
    forward = activation_rows(timeline) & (timeline.module >= 0)
    half = np.isin(kinds, list(halved))
    pairs = timeline.module.astype(np.int64) << 40 | timeline.size
    kept, made_half = np.unique(pairs[forward & ~half]), np.unique(pairs[forward & half])
    like_forward = np.isin(pairs, np.setdiff1d(made_half, kept))
    return temporary & (half | like_forward) & ~np.isin(timeline.size, parameters)


def _weights_cast(
    new: Timeline,
    timeline: Timeline,
    kinds: NDArray[np.int8],
    activation: Mask,
    case: Case,
    iteration: Iteration,
) -> Timeline:
    """The lower-precision copy of each weight: from its first use to the backward of its product."""
    inside = activation & (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
    rows = np.flatnonzero(inside & (kinds == Kind.PRODUCT))
    back = timeline.is_phase(BACKWARD) & (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
    spans = []
    seen: set[int] = set()
    called = {timeline.modules[module] for module in np.unique(timeline.module[inside]).tolist() if module >= 0}
    for row in rows[np.argsort(timeline.birth[rows])].tolist():
        module = int(timeline.module[row])
        if module in seen:
            continue
        seen.add(module)
        size = _multiplied(case, timeline.modules[module], called) // 2
        of_module = timeline.birth[back & (timeline.module == module)]
        end = float(of_module.max()) + 0.9 if len(of_module) else iteration.end
        spans.append((size, float(timeline.birth[row]) - 0.5, end))
    return new.added(spans, category=Category.AUTOCAST_CACHE, phase=FORWARD, step=iteration.step)


def _multiplied(case: Case, path: str, called: set[str]) -> int:
    """Bytes of a module's own parameters, and of those in modules inside it that it does not call (`out_proj`)."""
    inside = path + "."
    used = case.facts.parameter_bytes_used_by_module
    return sum(n for each, n in used.items() if each == path or (each.startswith(inside) and each not in called))


def loss_cast(
    new: Timeline, timeline: Timeline, kinds: NDArray[np.int8], case: Case, *, autocast: bool = True
) -> tuple[Timeline, Mask]:
    """Cross-entropy of the logits: log-softmax in the logits' type, then a float32 copy that its loss saves.

    Where the script casts the logits to float32 itself, that copy is there instead and log-softmax keeps float32;
    without `autocast` only that is dealt with. -> the timeline, and the rows that were dealt with.
    """
    stacks = case.profile.snapshot.stacks
    dealt = np.zeros(len(timeline), np.bool_)
    size, death = new.size.copy(), new.death.copy()
    parts: list[tuple[int, float, float]] = []
    for iteration in iterations(timeline):
        last = last_product(timeline, kinds, iteration)
        if last < 0:
            continue
        logits = int(timeline.size[last])
        half = (logits + 1) // 2
        saved = saved_rows(timeline, iteration) & (timeline.size == logits)
        results = np.flatnonzero(saved & (timeline.birth > timeline.birth[last]))
        gradients = _gradients_of(timeline, iteration, logits)
        for row in results[-1:].tolist():
            own_cast = upcasts(stacks, int(timeline.stack[row]))
            if not own_cast and not autocast:
                continue
            birth = float(timeline.birth[row])
            dealt[row] = True
            dealt[gradients] = True
            used = float(timeline.birth[gradients[0]]) + 0.5 if len(gradients) else iteration.end
            if own_cast:
                parts.append((logits, birth - 0.5, iteration.backward_start - 0.5))
                for second in gradients[1:2].tolist():
                    cast = _next_birth(timeline, float(timeline.birth[second])) - 0.25
                    parts.append((half, cast, float(timeline.death[second])))
                    death[second] = min(cast + 0.1, death[second])
            else:
                size[row] = half
                parts.append((logits, birth + 0.5, used))
                for second in gradients[1:2].tolist():
                    size[second] = half
                    parts.append((half, float(timeline.birth[second]) - 0.5, float(timeline.birth[second]) + 1.5))
    new = replace(new, size=size, death=death)
    return new.added(parts, category=Category.ACTIVATION, phase=OTHER), dealt


def _gradients_of(timeline: Timeline, iteration: Iteration, logits: int) -> NDArray[np.intp]:
    """What backward makes of the logits' size, in order: of the loss, then of its log-softmax."""
    back = timeline.is_category(Category.TEMPORARY, Category.ACTIVATION) & timeline.is_phase(BACKWARD)
    back &= (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
    rows = np.flatnonzero(back & (timeline.size == logits))
    return rows[np.argsort(timeline.birth[rows])]


def _next_birth(timeline: Timeline, time: float) -> float:
    later = timeline.birth[timeline.birth > time]
    return float(later.min()) if len(later) else float(timeline.events)
