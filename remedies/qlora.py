"""LoRA over weights in 4 bits (QLoRA): this changes what is trained, and rounds what is not.

Frozen layers are stored as NF4 and unpacked as they run.

Applies when: a model is fine-tuned, and parameters with gradients and optimizer state are most of the peak.
Saves: what LoRA saves, and of the blocks' weights all but 4 bits and a scale for each 64 values (doubly quantised:
0.52 bytes a weight); embeddings, norms and the output layer stay. Published: -34 % against LoRA in bfloat16.
Costs: unpacking in each use: +47 to +56 % time against LoRA (litgpt, StableLM-3B and Llama-2-7B).
Numerics: changed: weights are rounded to 4 bits, and adapters are trained.
Conflicts: full fine-tuning; sharding needs the quantised storage to be sharded too (`bnb_4bit_quant_storage`).
Frameworks: bitsandbytes `load_in_4bit` with PEFT; torchtune qlora recipes; Axolotl `adapter: qlora`; litgpt
`--quantize bnb.nf4`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .costs.compute import scaled
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .lora import RANK, STEP_TIME, TRAINED, frozen
from .lora import settings as lora_settings
from .whatif_timeline import Mask

NAME = "qlora"
NUMERICS = Numerics.CHANGED
EFFORT = Effort.LINES
BYTES_A_WEIGHT = 0.5 + 1 / 64 + 4 / (64 * 256)  # NF4, an 8-bit scale for 64 of them, a float32 for 256 scales
UNPACKING = Band(low=1.3, expected=1.5, high=1.6)
LEAST_WEIGHTS = 1 << 16  # smaller matrices (norms, biases) are not quantised


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    found = lora_settings(case)
    if isinstance(found, NotApplicable):
        return NotApplicable(NAME, found.reason)
    if not case.facts.blocks:
        return NotApplicable(NAME, "the repeated blocks, whose weights are quantised, are not known")
    return (Setting(name=NAME, options={"rank": RANK}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline = case.timeline
    weights = _weights(case)
    item = max(1, case.facts.parameter_bytes // max(1, case.facts.parameter_count))
    factor = BYTES_A_WEIGHT / item
    quantised = timeline.resized(weights, factor)
    less = round(float(timeline.size[weights].sum()) * (1 - factor))
    return Change(
        setting=Setting(name=NAME, options=dict(options)),
        expected=frozen(quantised, TRAINED),
        low=frozen(quantised, TRAINED / 2),
        high=frozen(quantised, 2 * TRAINED),
        step_time_factor=scaled(STEP_TIME, UNPACKING),
        numerics=NUMERICS,
        why=f"the blocks' weights take {BYTES_A_WEIGHT:.2f} bytes each, {size(less)} less; gradients and state of "
        f"{TRAINED:.0%} of the weights stay; this trains something else",
        doubt="a weight is unpacked while its layer runs, which is left out",
        time_doubt="published runs took 1.47 to 1.56 times LoRA's time",
    )


def _weights(case: Case) -> Mask:
    """Parameter rows of a size that the blocks' matrices have: at least as many as there are blocks."""
    timeline = case.timeline
    item = max(1, case.facts.parameter_bytes // max(1, case.facts.parameter_count))
    rows = timeline.is_category(Category.PARAMETER) & (timeline.size >= LEAST_WEIGHTS * item)
    sizes, counts = np.unique(timeline.size[rows], return_counts=True)
    repeated: Mask = rows & np.isin(timeline.size, sizes[counts >= len(case.facts.blocks)])
    return repeated
