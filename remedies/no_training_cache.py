"""Train with `use_cache=False`: a forward that a backward follows needs no key-value cache.

Applies when: a Hugging Face model is called with its default `use_cache=True` in training: each layer's keys and values
are copied into a cache that is returned with the loss, and kept as long as the output is.
Saves: where keys and values are views of one projection (GPT-2, fused qkv), their copies: 2 x layers x tokens x width
of the key-value heads. Where they are tensors of their own the copies take their place, and nothing is saved.
Costs: nothing; a copy less.
Numerics: identical: nothing reads the cache.
Conflicts: none; checkpointed blocks run without a cache by themselves.
Frameworks: `model.config.use_cache = False`, or `model(..., use_cache=False)`; Hugging Face Trainer `use_cache: false`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .key_value_cache import without_cache
from .passes import trains

NAME = "no-training-cache"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REPAIR
LEAST_SHARE = 0.01  # of the peak


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not trains(case.timeline):
        return NotApplicable(NAME, "no backward is in the trace: what generates needs its cache")
    if _saves(case) < LEAST_SHARE * case.timeline.peak().bytes:
        return NotApplicable(NAME, "no key-value cache is kept beside what a backward needs")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    return Change(
        setting=Setting(name=NAME),
        expected=without_cache(case),
        low=None,
        high=None,
        step_time_factor=Band(low=0.98, expected=1.0, high=1.0),
        numerics=NUMERICS,
        why=f"{size(_saves(case))} of keys and values are kept beside the loss, and nothing reads them",
    )


def _saves(case: Case) -> int:
    """Not the cache's own size: attention reads its copies, whose sources go instead."""
    return case.timeline.peak().bytes - without_cache(case).peak().bytes
