"""A single request is larger than the card can give to this process.

What it means
    Not the sum but one tensor is too large: even with nothing else alive the allocation could not be served. Nearly
    always a shape that was not meant: logits of a whole epoch, a batch that no limit holds, an outer product by
    broadcasting.

Evidence used
    Arithmetic: the request that failed against the card's size minus what is outside the allocator; where the size
    of the card is not known, against what the process held plus what the driver had left.

Example
    "Tried to allocate 58.15 GiB": 205,280 tokens x 76,032 vocabulary entries x 4 B in one micro-batch (slime issue
    1951).

Known limits
    Without the card's size the bound is what this process could have had at that moment, which other processes
    lower.

What the remedies change
    Only a smaller tensor helps: chunked-loss for logits, flash-attention for scores, a smaller batch or a limit on
    tokens.
"""

from collections.abc import Mapping

from .interface import Case, Claim, Confidence, Severity
from .text import line, size

CODE = "OOM012"
NAME = "request-exceeds-card"
REMEDIES = ("smaller-batch", "chunked-loss", "flash-attention")
DECISIVE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile, oom = case.profile, case.profile.oom
    if oom is None:
        return None
    if profile.capacity_bytes is not None:
        most, what = profile.capacity_bytes - (profile.outside_bytes or 0), "the card has"
    elif oom.device_free_bytes is not None:
        most, what = oom.reserved_bytes + oom.device_free_bytes, "this process could have had"
    else:
        return None
    if oom.requested_bytes <= most:
        return None
    evidence = [f"asked for {oom.requested_bytes:,} bytes, {oom.requested_bytes / most:.2f} times what {what}"]
    if oom.location:
        evidence.append(f"asked for at {line(oom.location)}")
    return Claim(
        severity=Severity.ERROR,
        title=f"One request of {size(oom.requested_bytes)} is larger than the {size(most)} that {what}",
        bytes=oom.requested_bytes,
        share=oom.requested_bytes / most,
        confidence=Confidence.EXACT,
        evidence=tuple(evidence),
        locations=(oom.location,) if oom.location else (),
    )
