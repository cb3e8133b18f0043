"""Autocast keeps half-precision copies of the weights.

What it means
    Inside an autocast region each fp32 weight is cast once and the copy is kept until the region ends: half of the
    weights' bytes on top of them. Under no_grad that buys nothing.

Evidence used
    Recorded categories; in a bare snapshot blocks of half a weight's size made by autocast's cast that live to the
    end of the forward, at most one per weight.

Example
    2.7B parameters in fp32 under no_grad with autocast: 12.7 GiB of weights and 6.3 GiB of copies.

Known limits
    Without C++ frames the copies are known by size and lifetime only.

What the remedies change
    cast-model: for inference, `model.to(torch.bfloat16)` once instead of autocast: no copies and half of the
    weights. For training, mixed-precision of the stored weights (FSDP's MixedPrecisionPolicy) keeps one copy per
    rank. Without the cache (cache_enabled=False) every use casts again, and with gradients each copy is kept.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM010"
NAME = "autocast-copies"
REMEDIES = ("cast-model", "fsdp")
FREE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.AUTOCAST_CACHE)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    parameters = case.profile.bytes_of(Category.PARAMETER)
    evidence = [f"{count(len(blocks), 'copied weight')} kept until autocast ends"]
    if parameters:
        evidence.append(f"{total / parameters:.2f} bytes of copies per byte of parameters")
    title = (
        f"Autocast's copies of the weights hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    )
    return claim(case, blocks, title, thresholds, evidence)
