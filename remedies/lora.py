"""Train small low-rank matrices beside frozen weights (LoRA). This changes what is trained.

Applies when: a model is fine-tuned, and gradients and optimizer state are a large share of the peak.
Saves: gradients and optimizer state of all but the adapters, with a foreach step's temporaries; activations stay (the
adapters read the same inputs). Published: -52 % on top of a ladder (torchtune 3B).
Costs: a little more arithmetic in forward, less in backward and in the step.
Numerics: changed: another set of weights is trained; results differ from a full fine-tuning by task.
Conflicts: a training from scratch; layers that have to change in full (new tokens' embeddings).
Frameworks: PEFT `LoraConfig`; torchtune lora recipes; Axolotl `adapter: lora`; litgpt `finetune_lora`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .sharded_state import held
from .whatif_timeline import OPTIMIZER, Timeline

NAME = "lora"
NUMERICS = Numerics.CHANGED
EFFORT = Effort.LINES
RANK = 16
TRAINED = 0.01  # of the weights at rank 16: two matrices of 16 columns beside one of thousands, 0.5 to 2 %
STEP_TIME = Band(low=0.7, expected=0.9, high=1.05)


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not case.timeline.is_category(Category.GRADIENT).any():
        return NotApplicable(NAME, "no gradient is in the trace: nothing learns in it")
    if case.facts.known and not case.facts.inferred and case.facts.trainable_bytes < 0.5 * case.facts.parameter_bytes:
        return NotApplicable(NAME, "most parameters are frozen already")
    return (Setting(name=NAME, options={"rank": RANK}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    trained = TRAINED * int(options.get("rank", RANK)) / RANK
    freed = held(case.timeline, Category.GRADIENT) + held(case.timeline, Category.OPTIMIZER_STATE)
    return Change(
        setting=Setting(name=NAME, options={"rank": int(options.get("rank", RANK))}),
        expected=frozen(case.timeline, trained),
        low=frozen(case.timeline, trained / 2),
        high=frozen(case.timeline, 2 * trained),
        step_time_factor=STEP_TIME,
        numerics=NUMERICS,
        why=f"gradients and state of {trained:.1%} of the weights stay, {size(round(freed * (1 - trained)))} go; "
        "this trains something else",
        doubt="how large the adapters are depends on which layers get them",
        time_doubt="no weight gradients are computed for frozen layers, adapters are computed beside them",
    )


def frozen(timeline: Timeline, trained: float) -> Timeline:
    """Gradients, state and the step's temporaries of a share of the weights."""
    rows = timeline.is_category(Category.GRADIENT, Category.OPTIMIZER_STATE)
    rows |= timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    return timeline.resized(rows, trained)
