"""The key/value cache holds much of the memory.

What it means
    Generation keeps keys and values of every token, layer and beam: 2 x layers x tokens x hidden size. It grows
    with batch, beams and length, not with the model alone.

Evidence used
    Recorded categories; in a bare snapshot blocks made by a cache class that outlive their forward.

Example
    vLLM gives 52 GiB of an H100 to it; a 4.1 GiB copy of logits then has no room (vllm pull 48641).

Known limits
    A cache that is made once, before the recording, has no stack and looks like parameters.

What the remedies change
    smaller-batch (fewer sequences or beams), a shorter maximum length.
    quantized-kv-cache: a cache in fewer bits, or one that is offloaded to the host.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM017"
NAME = "kv-cache"
REMEDIES = ("smaller-batch", "quantized-kv-cache")


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.KV_CACHE)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    title = f"The key/value cache holds {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, [f"{count(len(blocks), 'block')}"])
