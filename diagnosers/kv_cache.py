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
    cache-headroom: give the cache a smaller share of the card (`gpu_memory_utilization`, `mem_fraction_static`), and
    avoid copies of the logits: what one step needs beside the cache has to fit too.
    smaller-batch (fewer sequences or beams), a shorter maximum length.
    quantized-kv-cache: a cache in fewer bits, or one that is offloaded to the host.
"""

from collections.abc import Mapping
from dataclasses import replace

from .attribution.signs import Sign
from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM017"
NAME = "kv-cache"
REMEDIES = ("cache-headroom", "smaller-batch", "quantized-kv-cache")


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.KV_CACHE)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    title = f"The key/value cache holds {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    oom, evidence = case.profile.oom, [f"{count(len(blocks), 'block')}"]
    if oom is None or oom.signs & Sign.KV_CACHE:  # nothing failed, or the cache itself: it is what has to shrink
        return claim(case, blocks, title, thresholds, evidence, REMEDIES[1:])
    evidence.insert(0, f"{size(oom.requested_bytes)} more for one step had no room beside it")
    found = claim(case, blocks, title, thresholds, evidence)
    return replace(found, locations=(*((oom.location,) if oom.location else ()), *found.locations))
