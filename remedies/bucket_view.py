"""Let the gradients be views of DDP's buckets: `DistributedDataParallel(..., gradient_as_bucket_view=True)`.

Applies when: the model is in DistributedDataParallel and its buckets are alive beside the gradients.
Saves: the gradients: as many bytes as the buckets (8,250 to 7,183 MB for about 1 GB of parameters,
pytorch/pytorch#41954).
Costs: nothing; a copy into the bucket and one back are not done.
Numerics: identical.
Conflicts: code that calls `.detach_()` on gradients; under zero_grad(set_to_none=False) the views stay.
Frameworks: torch DDP; Hugging Face has no option for it; Lightning `DDPStrategy(gradient_as_bucket_view=True)`;
accelerate `DistributedDataParallelKwargs`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .sharded_state import held

NAME = "gradient-as-bucket-view"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.SETTING
LEAST_SHARE = 0.5  # of the gradients, for communication memory to be their buckets
_DDP = "torch/nn/parallel/distributed.py"


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    frames = case.profile.snapshot.stacks.frames
    if not any(_DDP in frame.filename.replace("\\", "/") for frame in frames):
        return NotApplicable(NAME, "no DistributedDataParallel is on any stack")
    gradients = held(case.timeline, Category.GRADIENT)
    if not gradients:
        return NotApplicable(NAME, "no gradient beside a bucket is in the trace (they may be views already)")
    if held(case.timeline, Category.COMMUNICATION) < LEAST_SHARE * gradients:
        return NotApplicable(NAME, "no buckets of the gradients' size are in the trace")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    rows = case.timeline.is_category(Category.GRADIENT)
    return Change(
        setting=Setting(name=NAME),
        expected=case.timeline.without(rows),
        low=None,
        high=None,
        step_time_factor=Band(low=0.97, expected=1.0, high=1.0),
        numerics=NUMERICS,
        why=f"{size(held(case.timeline, Category.GRADIENT))} of gradients are in the buckets as well",
    )
