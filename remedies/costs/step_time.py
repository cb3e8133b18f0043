"""How long a training step takes: measured by the trace's own clock, else from its arithmetic."""

from typing import TYPE_CHECKING

import numpy as np

from ...diagnosers.interface import Category
from ..interface import Band
from .links import card

if TYPE_CHECKING:
    from ..estimating import Case

# Share of the peak rate that training reaches: 0.3 to 0.55 in published runs (torchtitan's tables 0.33 to 0.47 of
# bf16 on H100); small models and eager loops less.
UTILISATION = Band(low=0.2, expected=0.38, high=0.55)


def step_seconds(case: "Case") -> Band | None:
    """Seconds of one step; None where neither the clock nor tokens and card are known."""
    return _by_clock(case) or _by_arithmetic(case)


def _by_clock(case: "Case") -> Band | None:
    """The median distance of the steps in a trace of a real GPU (the virtual one's clock is the CPU's)."""
    recording = case.profile.snapshot.recording
    time_us = case.profile.device_snapshot.trace.time_us
    if (recording is not None and recording.kind == "virtual") or not len(time_us) or time_us.min() < 0:
        return None
    ends = [step.event for step in case.profile.steps if step.event < len(time_us)]
    if len(ends) < 3:
        return None
    seconds = float(np.median(np.diff(time_us[ends]))) / 1e6
    return Band(low=0.9 * seconds, expected=seconds, high=1.1 * seconds) if seconds > 0 else None


def _by_arithmetic(case: "Case") -> Band | None:
    """6 operations per multiplying parameter and token (forward 2, backward 4); token ids are 8-byte inputs."""
    spec = card(case.job.gpu)
    tokens = tokens_per_step(case)
    if spec is None or tokens is None or not case.facts.parameter_count:
        return None
    lower = case.autocast or case.facts.autocast or set(case.facts.bytes_of_dtype) != {"float32"}
    dtype = "bf16" if lower else "fp32"
    rate = spec.flops.get(dtype) or spec.flops.get("fp16") or spec.flops["fp32"]
    operations = 6.0 * case.facts.parameter_count * tokens
    return Band(
        low=operations / (rate * UTILISATION.high),
        expected=operations / (rate * UTILISATION.expected),
        high=operations / (rate * UTILISATION.low),
    )


def tokens_per_step(case: "Case") -> int | None:
    """Token ids of one step; None for a model without an embedding."""
    if not any(name.endswith("Embedding") for name in case.facts.class_of.values()):
        return None
    if case.facts.tokens is not None:
        return case.facts.tokens
    inputs = case.timeline.size[case.timeline.is_category(Category.INPUT)]
    return int(inputs.max()) // 8 if len(inputs) else None
