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
    wrapping-policy: `fully_shard` (or the auto-wrap policy) on every block before the whole model, so that one block is
    gathered at a time; reshard_after_forward=True.
    limit-all-gathers: limit_all_gathers=True (FSDP1), no forward_prefetch; gradient_as_bucket_view for DDP.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim, DeviceProfile
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM018"
NAME = "communication-buffers"
REMEDIES = ("fsdp", "wrapping-policy", "limit-all-gathers")
# Of the whole model, in one gathered buffer.
ONE_UNIT = 0.8


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.COMMUNICATION)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    largest = max(b.requested_bytes for b in blocks.values())
    evidence = [f"{count(len(blocks), 'buffer')}, the largest {size(largest)}"]
    whole = _whole_model(case.profile)
    remedies: tuple[str, ...] = REMEDIES
    if whole:
        remedies = (REMEDIES[2], REMEDIES[1])
        if largest >= ONE_UNIT * whole:
            evidence.insert(
                0, f"one of them gathers {percent(largest / whole)} of the model: it is wrapped as one unit"
            )
            remedies = REMEDIES[1:]
    title = f"Buffers of collectives hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, evidence, remedies)


def _whole_model(profile: DeviceProfile) -> int:
    """Bytes of all parameters, unsharded; 0 where they are not sharded, or that is not known."""
    recording = profile.snapshot.recording
    parameters = recording.facts.get("parameters") if recording else None
    sharded = isinstance(parameters, Mapping) and parameters.get("sharded")
    return profile.bytes_of(Category.PARAMETER) * recording.world_size if recording and sharded else 0
