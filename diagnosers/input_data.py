"""Input data holds much of the memory.

What it means
    The data set, or many batches ahead, lies on the GPU. One batch is rarely more than a percent.

Evidence used
    Recorded categories; in a bare snapshot tensors made by a data loader or copied to the device at the top level
    of the script.

Example
    `train = torch.tensor(everything, device="cuda")` before the loop.

Known limits
    A tensor that was made before the recording has no stack and is unknown.

What the remedies change
    stream-batches: keep the data set on the host and move each batch (pinned memory, non_blocking=True).
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM016"
NAME = "input-data"
REMEDIES = ("stream-batches", "smaller-batch")


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.INPUT)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    title = f"Input data holds {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, [f"{count(len(blocks), 'tensor')}"])
