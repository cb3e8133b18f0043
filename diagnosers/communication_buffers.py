"""Collectives hold much of the memory.

What it means
    Gathered parameters of FSDP, buckets of DDP, inputs and outputs of reductions. With blocks wrapped one by one,
    one or two gathered blocks should be alive; a model wrapped as a single unit, or all-gathers that run ahead,
    hold far more.

Evidence used
    Recorded categories; in a bare snapshot the frames of c10d, FSDP and DDP.

Example
    FSDP1 without a limit kept 38.6 GB active where 7.2 GB were needed (pytorch pull 98354).

Known limits
    Buffers inside NCCL are outside the allocator (OOM013).

What the remedies change
    fsdp with a wrapping policy per block and reshard_after_forward; limiting the prefetch; gradient_as_bucket_view
    for DDP.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM018"
NAME = "communication-buffers"
REMEDIES = ("fsdp",)


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.COMMUNICATION)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    evidence = [f"{count(len(blocks), 'buffer')}, the largest {size(max(b.requested_bytes for b in blocks.values()))}"]
    title = f"Buffers of collectives hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, evidence)
