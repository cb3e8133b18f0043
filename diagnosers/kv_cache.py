"""The key/value cache holds much of the memory.

What it means
    Generation keeps keys and values of every token, layer and beam: 2 x layers x tokens x hidden size. It grows
    with batch, beams and length, not with the model alone.

Evidence used
    Recorded categories; in a bare snapshot blocks made by a cache class that outlive their forward. One request's
    blocks of a line were all made in one forward, its last; those of several forwards are the caches of several
    requests. Where no cache was read again after a newer one had begun, they belong to requests that are finished.

Example
    vLLM gives 52 GiB of an H100 to it; a 4.1 GiB copy of logits then has no room (vllm pull 48641). What `generate`
    returns with `return_dict_in_generate` holds the request's cache for as long as it is kept (transformers issue 31717
    asks how to be rid of it).

Known limits
    A cache that is made once, before the recording, has no stack and looks like parameters. Caches that are kept on
    purpose, for prompts that come back, look finished until the first does.

What the remedies change
    release-caches: keep the tokens of a finished request (`out.sequences`), not what holds its `past_key_values`.
    cache-headroom: give the cache a smaller share of the card (`gpu_memory_utilization`, `mem_fraction_static`), and
    avoid copies of the logits: what one step needs beside the cache has to fit too.
    smaller-batch (fewer sequences or beams), a shorter maximum length.
    quantized-kv-cache: a cache in fewer bits, or one that is offloaded to the host.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from .attribution.facts import gather
from .attribution.phases import FORWARD, run_starts
from .attribution.signs import Sign
from .holders import tensor_holders
from .interface import Case, Category, Claim, DeviceProfile, LiveBlock, Severity
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM017"
NAME = "kv-cache"
REMEDIES = ("release-caches", "cache-headroom", "smaller-batch", "quantized-kv-cache")


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.KV_CACHE)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    title = f"The key/value cache holds {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    evidence = [count(len(blocks), "block")]
    finished = _finished(case.profile, blocks.values())
    if finished >= thresholds["min_finished"]:
        title = f"The key/value caches of {finished + 1} requests hold {size(total)}, {percent(part)} of what was live"
        evidence.append("none of them was read again once a newer one had begun: all but the newest are finished")
        evidence += tensor_holders(case.profile, total)
        title = f"{title} {moment(case.profile)}"
        return claim(case, blocks, title, thresholds, evidence, (REMEDIES[0], *REMEDIES[2:]), Severity.WARNING)
    oom = case.profile.oom
    if oom is None or oom.signs & Sign.KV_CACHE:  # nothing failed, or the cache itself: it is what has to shrink
        return claim(case, blocks, title, thresholds, evidence, REMEDIES[2:])
    evidence.insert(0, f"{size(oom.requested_bytes)} more for one step had no room beside it")
    found = claim(case, blocks, title, thresholds, evidence, REMEDIES[1:])
    return replace(found, locations=(*((oom.location,) if oom.location else ()), *found.locations))


def _finished(profile: DeviceProfile, blocks: Iterable[LiveBlock]) -> int:
    """Requests whose caches are alive though newer ones have begun, and none of which is still in use.

    A cache that goes on growing drops its blocks for longer ones: where that happens after another request's forwards,
    requests take turns.
    """
    facts = gather(profile.snapshot, profile.device_snapshot)
    starts = run_starts(facts.phases, FORWARD)
    made: dict[int, set[int]] = {}
    for block in blocks:
        if block.birth >= 0:
            made.setdefault(block.stack, set()).add(int(np.searchsorted(starts, block.birth, side="right")))
    grown = ((facts.signs & facts.free_signs & Sign.KV_CACHE) != 0) & ~facts.older & ~facts.never_freed
    lives = facts.lives
    forwards = np.searchsorted(starts, lives.free_requested[grown]) - np.searchsorted(starts, lives.birth[grown])
    if (forwards > 1).any():
        return 0
    return max(map(len, made.values()), default=1) - 1
