"""Copies of the model are kept on the card.

What it means
    A deepcopy or a snapshot of the state dict (averaging, checkpoints, a reference or target model) lies beside the
    model.

Evidence used
    Live blocks whose stack has deepcopy in it and that are long lived.

Example
    An average of the weights that deep-copies itself at each checkpoint grew by one model per checkpoint
    (ema-pytorch issue 35).

Known limits
    A second model that is built by its own constructor counts as parameters.

What the remedies change
    copy-to-host: keep the copy on the CPU (`{k: v.cpu() for k, v in model.state_dict().items()}`).
"""

from collections.abc import Mapping

from .attribution.signs import Sign
from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM023"
NAME = "model-copies"
REMEDIES = ("copy-to-host",)
FREE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    mine = case.live(Category.PARAMETER, Category.BUFFER, Category.UNKNOWN)
    blocks = {i: b for i, b in mine.items() if b.signs & Sign.COPY}
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    title = f"Copies made by deepcopy hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, [f"{count(len(blocks), 'tensor')}"])
