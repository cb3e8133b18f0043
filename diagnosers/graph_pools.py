"""CUDA graphs hold memory in pools of their own.

What it means
    A captured graph allocates from a private pool, which keeps its memory for as long as the graph lives: nothing else
    can use it. `torch.compile(mode="reduce-overhead")` captures one graph for each input shape.

Evidence used
    Segments whose pool is not the default one, at the moment looked at, and how many pools there are.

Example
    A generation loop with mode="reduce-overhead" grew with every new sequence length (pytorch issue 128424).

Known limits
    Recordings of torch before 2.1 do not say the pool. Other users of `torch.cuda.MemPool` look the same.

What the remedies change
    bucket-shapes: pad inputs to a few fixed lengths, so that a few graphs serve all; or mode="default", or
    dynamic=True without graphs. Graphs that are not needed at once can share a pool (`pool=` of `torch.cuda.graph`).
"""

from collections.abc import Mapping

from ..allocator.blocks import DEFAULT_POOL
from .heap import heap
from .interface import Case, Claim, Confidence
from .judging import bytes_of, held_by_line, locations, severity
from .text import count, moment, percent, size

CODE = "OOM026"
NAME = "graph-pools"
REMEDIES = ("bucket-shapes",)
DECISIVE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    if len(profile.device_snapshot.pools) < 2:
        return None
    event = profile.oom.event if profile.oom else profile.peak.event
    segments = heap(profile.snapshot, profile.device_snapshot, event, profile.live)
    private = [segment for segment in segments if segment.pool_id != DEFAULT_POOL]
    reserved = sum(segment.total_bytes for segment in segments)
    total = sum(segment.total_bytes for segment in private)
    pools = len({segment.pool_id for segment in private})
    if not reserved or total < thresholds["min_share"] * reserved or pools < thresholds["min_pools"]:
        return None
    addresses = {block.address for segment in private for block in segment.blocks}
    blocks = {i: b for i, b in case.live().items() if b.address in addresses}
    held = held_by_line(profile, blocks.values())
    part = total / reserved
    return Claim(
        severity=severity(profile, part, thresholds),
        title=f"{count(pools, 'private pool')} of CUDA graphs hold {size(total)}, {percent(part)} of what is reserved"
        f" {moment(profile)}",
        bytes=total,
        share=part,
        confidence=Confidence.EXACT,
        evidence=(
            f"{size(total // pools)} per pool; {size(bytes_of(blocks.values()))} of it are live tensors",
            *(str(row) for row in held[:2]),
        ),
        blocks=frozenset(blocks),
        locations=locations(held),
    )
