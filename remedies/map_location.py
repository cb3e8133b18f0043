"""Load checkpoints into host memory: `torch.load(path, map_location="cpu")`.

Applies when: tensors that torch.load put on the GPU are alive at the peak, or make it.
Saves: the copy of the checkpoint: parameters once more, with the optimizer's state up to three times.
Costs: the copy from the host to the card, once.
Numerics: identical.
Conflicts: none; a file larger than host memory needs `mmap=True`.
Frameworks: all; Hugging Face and Lightning load into host memory by themselves.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .whatif_timeline import Mask

NAME = "map-location"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REPAIR
_FILE = "torch/serialization.py"


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not _loaded(case).any():
        return NotApplicable(NAME, "torch.load put nothing on the GPU in this trace")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    rows = _loaded(case)
    held = case.timeline.take(np.flatnonzero(rows)).peak().bytes
    return Change(
        setting=Setting(name=NAME),
        expected=case.timeline.without(rows),
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.0, high=1.0),
        numerics=NUMERICS,
        why=f"torch.load put {size(held)} on the GPU beside what they are copied to",
        doubt="tensors that the job goes on using have to be copied to the card all the same",
    )


def _loaded(case: Case) -> Mask:
    stacks = case.profile.snapshot.stacks
    mine = np.array(
        [any(_FILE in frame.filename.replace("\\", "/") for frame in stacks.of(i)) for i in range(len(stacks.stacks))]
        + [False],
        np.bool_,
    )
    found: Mask = mine[case.timeline.stack]
    return found
