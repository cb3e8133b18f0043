"""Memory that is no longer referenced waits for another stream.

What it means
    Tensors that a second stream used (`record_stream`: collectives, prefetching copies) are dropped in Python, but
    their blocks can be used again only when that stream has passed an event. The CPU runs ahead, and they pile up.

Evidence used
    Blocks whose free was requested before the moment looked at and completed after it.

Example
    FSDP1 loading through broadcasts held 78 GB on each rank, 23 GB with TORCH_NCCL_AVOID_RECORD_STREAMS=1.

Known limits
    A trace without free_requested events (skip_actions) does not show it.

What the remedies change
    avoid-record-streams: newer c10d collectives do not call record_stream (TORCH_NCCL_AVOID_RECORD_STREAMS=1 before
    that); limiting the all-gathers in flight does the same for FSDP1.
"""

from collections.abc import Mapping

from ..snapshots.timeline import lifetimes
from .interface import Case, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM020"
NAME = "pending-frees"
REMEDIES = ("avoid-record-streams",)
FREE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    event = profile.oom.event if profile.oom else profile.peak.event
    lives = lifetimes(profile.device_snapshot)
    waiting = (lives.free_requested <= event) & (lives.death > event) & (lives.birth <= event)
    # death follows free_requested at once on one stream: only a gap with other work in between is waiting
    waiting &= lives.death > lives.free_requested + 1
    if not waiting.any():
        return None
    addresses = set(lives.address[waiting].tolist())
    blocks = {i: b for i, b in case.live().items() if b.address in addresses}
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if part < thresholds["min_share"]:
        return None
    title = (
        f"{size(total)} were dropped but wait for another stream {moment(profile)}, {percent(part)} of the live bytes"
    )
    return claim(
        case, blocks, title, thresholds, [f"{count(len(blocks), 'block')} between free_requested and free_completed"]
    )
