"""The step time of sharding: gathers and scatters of the blocks against the computation that hides them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..interface import Band
from .collectives import all_gather, all_reduce, reduce_scatter
from .nccl_tuning import Topology
from .step_time import step_seconds
from .topology import across_nodes, inside_node, topology_of

if TYPE_CHECKING:
    from ..estimating import Case

# Of communication that could be hidden, what computation is slowed by it all the same: the kernels of a collective
# take up to 32 of an H100's 132 SMs, of an A100's 108 up to 24.
CONTENTION = 0.15
# Where the step time is not known: measured, x 1.02 (8 A100, NVLink) to x 2.5 (2 GPUs over PCIe, no overlap; litgpt).
UNKNOWN_NVLINK = Band(low=1.0, expected=1.05, high=1.3)
UNKNOWN_PCIE = Band(low=1.1, expected=1.5, high=2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Seconds of one step's collectives; `exposed` cannot be hidden: the first gather, the last reduction."""

    gather: float
    reduce: float
    exposed: float

    @property
    def total(self) -> float:
        return self.gather + self.reduce


def fsdp_traffic(topology: Topology, units: list[int], *, reshard: bool, replicate: bool) -> Traffic:
    """Of one step with the parameters in `units` (bytes each, whole).

    `replicate`: sharded inside a node and replicated across nodes (HSDP): gathers and scatters stay inside, and the
    shards of the gradients are all-reduced between nodes.
    """
    shard = inside_node(topology) if replicate else topology
    gathers = [all_gather(shard, n).seconds for n in units]
    scatters = [reduce_scatter(shard, n).seconds for n in units]
    if replicate:
        between = across_nodes(topology)
        share = topology.gpus_per_node
        scatters = [a + all_reduce(between, n // share).seconds for a, n in zip(scatters, units, strict=True)]
    return Traffic(
        gather=sum(gathers) * (2 if reshard else 1), reduce=sum(scatters), exposed=gathers[-1] + scatters[-1]
    )


def ddp_traffic(topology: Topology, gradient_bytes: int, bucket_bytes: int = 25 << 20) -> Traffic:
    """Of one step of DistributedDataParallel: an all-reduce per bucket; only the last is seen."""
    count = max(1, -(-gradient_bytes // bucket_bytes))
    each = all_reduce(topology, min(bucket_bytes, gradient_bytes)).seconds
    return Traffic(gather=0.0, reduce=count * each, exposed=each)


def slowed(traffic: Traffic, step: Band) -> Band:
    """The factor over a step of `step` seconds. Low: all that can be is hidden; high: nothing is."""
    low, expected = (max(0.0, traffic.total - traffic.exposed - seconds) for seconds in (step.high, step.expected))
    return Band(
        low=1 + (traffic.exposed + low) / step.high,
        expected=1 + (traffic.exposed + max(CONTENTION * traffic.total, expected)) / step.expected,
        high=1 + traffic.total / step.low,
    )


def units_of(case: "Case") -> list[int]:
    """Whole bytes of each sharding unit: the blocks, and what is outside them; in the type in which they travel."""
    blocks = [case.facts.bytes_below(path) for path in case.facts.blocks]
    return [*blocks, max(1, case.facts.parameter_bytes - sum(blocks))]


def fsdp_factor(case: "Case", *, reshard_after_forward: bool, replicate: bool = False) -> Band:
    """A step of FSDP over the same step without communication, each rank on its share of the batch."""
    topology = topology_of(case.job)
    step = step_seconds(case)
    if step is None:
        return UNKNOWN_NVLINK if topology.nvlink else UNKNOWN_PCIE
    ranks = topology.ranks
    share = Band(low=step.low / ranks, expected=step.expected / ranks, high=step.high / ranks)
    traffic = fsdp_traffic(topology, units_of(case), reshard=reshard_after_forward, replicate=replicate)
    return slowed(traffic, share)


def stage_factor(case: "Case") -> Band:
    """A step of ZeRO-1 or -2: gradients are reduced behind backward, parameters gathered after the step."""
    topology = topology_of(case.job)
    step = step_seconds(case)
    if step is None or not case.facts.parameter_bytes:
        return UNKNOWN_NVLINK if topology.nvlink else UNKNOWN_PCIE
    reduced = ddp_traffic(topology, case.facts.trainable_bytes or case.facts.parameter_bytes)
    gathered = all_gather(topology, case.facts.parameter_bytes).seconds
    traffic = Traffic(gather=gathered, reduce=reduced.reduce, exposed=gathered + reduced.exposed)
    ranks = topology.ranks
    return slowed(traffic, Band(low=step.low / ranks, expected=step.expected / ranks, high=step.high / ranks))
