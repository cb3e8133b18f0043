"""Loading or saving a checkpoint is what needs the most memory.

What it means
    A checkpoint is read to the GPU beside the model and optimizer that it is for, or a full copy of the state is put
    together on every GPU to be written. Both last for moments, and make a job fail that trains for days.

Evidence used
    Live blocks whose stack goes through torch.load, load_state_dict, state_dict, a gathered (unsharded) state or a
    deepcopy of it, and that neither the model nor the optimizer holds, at the moment looked at.

Example
    A 1.3B model trained on 24 GB with 1 GB to spare; resuming loaded Adam's state to the GPU a second time
    (transformers issue 22123).

Known limits
    Tensors that a model or optimizer took over as they were loaded are its own, and counted there. In a bare snapshot
    a function of another name that copies tensors is not recognised.

What the remedies change
    map-location: `torch.load(..., map_location="cpu", mmap=True)`, then load_state_dict; the copy on the GPU is gone.
    save-sharded: torch.distributed.checkpoint or SHARDED_STATE_DICT; else rank0_only with offload_to_cpu, and state
    dicts moved to the host tensor by tensor.
"""

from collections.abc import Mapping

from .attribution.signs import Sign
from .interface import Case, Category, Claim, Confidence
from .judging import bytes_of, claim, share
from .text import moment, percent, size

CODE = "OOM027"
NAME = "checkpoint-spike"
REMEDIES = ("map-location", "save-sharded")
DECISIVE = True
_HELD = (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE, Category.GRADIENT)


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    blocks = {
        index: block
        for index, block in case.live().items()
        if block.signs & (Sign.LOAD | Sign.SAVE)
        and not (block.category in _HELD and block.confidence is Confidence.EXACT)
    }
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if part < thresholds["min_share"] or total < thresholds["min_bytes"]:
        return None
    saved = bytes_of(b for b in blocks.values() if b.signs & Sign.SAVE and not b.signs & Sign.LOAD)
    doing = "saving" if 2 * saved > total else "loading"
    held = sum(profile.bytes_of(category) for category in _HELD[:3])
    evidence = [f"beside {size(held)} of parameters, buffers and optimizer state"] if held else []
    title = f"{doing.capitalize()} a checkpoint holds {size(total)}, {percent(part)} of what was live {moment(profile)}"
    remedies = REMEDIES[::-1] if doing == "saving" else REMEDIES
    return claim(case, blocks, title, thresholds, evidence, remedies)
