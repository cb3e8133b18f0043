"""Let the allocator grow its segments (`expandable_segments:True`) instead of splitting blocks of fixed ones.

Applies when: memory is reserved but in pieces too small for the request that fails: sizes that change from step to
step, evaluation between training, large blocks next to small ones that live long.
Saves: reserved memory, not allocated: the predicted peak of tensors stays, what the card holds beside it shrinks.
Costs: nothing measured; mapping memory takes time when segments grow.
Numerics: identical.
Conflicts: not together with max_split_size_mb; it must be set before the first use of the GPU; not with CUDA IPC of
old drivers, vLLM's sleep mode, NIXL.
Frameworks: all: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, here `oomdoc run --alloc-conf ...`.
"""

from collections.abc import Mapping
from typing import Any

from ..allocator.config import AllocatorConfig, parse
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting

NAME = "allocator-settings"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.SETTING
TEXT = "expandable_segments:True"
LEAST_SHARE = 0.03  # typical steady training reserves 0.1 to 3 % more than it allocates (torchtune, litgpt)


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not len(case.timeline):
        return NotApplicable(NAME, "the snapshot has no trace to replay under another setting")
    if case.profile.snapshot.settings.get("expandable_segments"):
        return NotApplicable(NAME, "expandable segments are on already")
    plain, grown = case.timeline.replay(), case.timeline.replay(config=_config())
    gain = plain.peak_reserved_bytes - grown.peak_reserved_bytes
    if gain < LEAST_SHARE * plain.peak_reserved_bytes:
        return NotApplicable(NAME, f"expandable segments would reserve only {size(max(0, gain))} less")
    return (Setting(name=NAME, options={"expandable_segments": True}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    plain, grown = case.timeline.replay(), case.timeline.replay(config=_config())
    return Change(
        setting=Setting(name=NAME, options=dict(options)),
        expected=case.timeline,
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.0, high=1.02),
        numerics=NUMERICS,
        why=(
            f"replayed with {TEXT}, the same tensors reserve {size(grown.peak_reserved_bytes)} instead of "
            f"{size(plain.peak_reserved_bytes)}"
        ),
        config=_config(),
    )


def _config() -> AllocatorConfig:
    return parse(TEXT)
