"""Much of the card is used outside PyTorch's allocator.

What it means
    The card's total minus what PyTorch reserved minus what the driver had free belongs to something else: the CUDA
    context, NCCL's buffers, another process, or another rank of this job on the wrong device. No change to the
    model helps.

Evidence used
    Total, reserved and device-free bytes at the failure. The context and NCCL of one process are allowed for
    (configs/thresholds.yaml); the rest is reported.

Example
    7.92 GiB card, 86 MiB reserved by PyTorch, 24.6 MiB free: 7.8 GiB belong to a process that was killed badly.

Known limits
    A snapshot does not name the owner; `oomdoc doctor` and nvidia-smi do. Without the card's size (a bare snapshot
    without --gpu) this cannot be told.

What the remedies change
    free-the-card: stop the other process, take another card, or set the device of each rank before its first CUDA
    call.
"""

from collections.abc import Mapping

from .interface import Case, Claim, Confidence, Inconclusive, Severity
from .text import percent, size

CODE = "OOM013"
NAME = "outside-allocator"
REMEDIES = ("free-the-card",)
DECISIVE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | Inconclusive | None:
    profile, oom = case.profile, case.profile.oom
    if oom is None:
        return None
    if profile.capacity_bytes is None:
        reason = "the size of the card is not in this snapshot: name it with --gpu to see what is outside PyTorch"
        return Inconclusive(code=CODE, reason=reason)
    if profile.outside_bytes is None:
        return Inconclusive(code=CODE, reason="the snapshot does not say how much the driver had free at the failure")
    part = profile.outside_bytes / profile.capacity_bytes
    surplus = profile.outside_bytes - int(thresholds["expected_bytes"])
    if surplus <= 0 or part < thresholds["min_share"]:
        return None
    decisive = surplus + (oom.device_free_bytes or 0) >= oom.requested_bytes
    return Claim(
        severity=Severity.ERROR if decisive else Severity.WARNING,
        title=f"{size(profile.outside_bytes)} of the card, {percent(part)}, is used outside PyTorch's allocator",
        bytes=profile.outside_bytes,
        share=part,
        confidence=Confidence.EXACT,
        evidence=(
            f"card {size(profile.capacity_bytes)}, reserved by PyTorch {size(oom.reserved_bytes)},"
            f" free {size(oom.device_free_bytes or 0)}",
            "a context takes 0.3 to 0.6 GiB, NCCL 0.5 to 0.7 GiB per communicator",
        ),
    )
