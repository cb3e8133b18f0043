"""Where the communication time of a job goes: which collectives, how NCCL does them, and what bounds each."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...diagnosers.text import size
from ..interface import Band, Communication, Exchange
from .collectives import Choice, all_gather, all_reduce, half_bandwidth_bytes, reduce_scatter
from .nccl_tuning import PROTOCOLS, Topology, options
from .sharding import Traffic, ddp_traffic, fsdp_traffic, slowed, units_of
from .step_time import step_seconds
from .topology import across_nodes, inside_node, topology_of

if TYPE_CHECKING:
    from ..estimating import Case

DDP_BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default
NOTABLE = 1.05  # a strategy has to be as much faster to be advised
_MODELS: dict[str, Callable[[Topology, int], Choice]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
}


def communication(case: "Case") -> Communication | None:
    """For the job's GPUs; None where there is one, or where the size of its parameters is not known."""
    topology = topology_of(case.job)
    if topology.ranks < 2 or not case.facts.parameter_bytes:
        return None
    units = units_of(case)
    unit = max(units, key=units.count)  # the size that most units have: a block's
    gradients = case.facts.trainable_bytes or case.facts.parameter_bytes
    bucket = min(DDP_BUCKET_BYTES, gradients)
    exchanges = [_exchange("ddp", "a bucket of gradients", topology, "all_reduce", -(-gradients // bucket), bucket)]
    traffic = {"ddp": ddp_traffic(topology, gradients, bucket)}
    exchanges += _sharded("fsdp", topology, unit, len(units))
    traffic["fsdp"] = fsdp_traffic(topology, units, reshard=True, replicate=False)
    if topology.nodes > 1 and topology.gpus_per_node > 1:
        exchanges += _sharded("hsdp", inside_node(topology), unit, len(units))
        shard = unit // topology.gpus_per_node
        what = "the gradients of a block's shard, between nodes"
        exchanges.append(_exchange("hsdp", what, across_nodes(topology), "all_reduce", len(units), shard))
        traffic["hsdp"] = fsdp_traffic(topology, units, reshard=True, replicate=True)
    factors = _factors(case, topology.ranks, traffic)
    return Communication(
        exchanges=tuple(exchanges),
        seconds={name: each.total for name, each in traffic.items()},
        step_time_factor=factors,
        advice=_advice(topology, traffic, factors),
    )


def _sharded(strategy: str, topology: Topology, unit: int, count: int) -> list[Exchange]:
    return [
        _exchange(strategy, "the parameters of a block, forward and backward", topology, "all_gather", 2 * count, unit),
        _exchange(strategy, "the gradients of a block", topology, "reduce_scatter", count, unit),
    ]


def _exchange(strategy: str, what: str, topology: Topology, collective: str, count: int, nbytes: int) -> Exchange:
    choice = _MODELS[collective](topology, nbytes)
    half = half_bandwidth_bytes(topology, collective)
    return Exchange(
        strategy=strategy,
        what=what,
        collective=collective,
        count=count,
        nbytes=nbytes,
        seconds=choice.seconds,
        algorithm=choice.algorithm,
        protocol=choice.protocol_name,
        bound=choice.bound,
        half_bandwidth_bytes=half,
        why=_why(topology, collective, nbytes, choice, half),
    )


def _why(topology: Topology, collective: str, nbytes: int, choice: Choice, half: int) -> str:
    """Which way and why, what it waits for, and whether the message is large enough for the links."""
    parts = [_against(topology, collective, nbytes, choice)]
    waits = {"latency": choice.latency + choice.launch, "bytes": choice.transfer}
    share = waits["bytes"] / choice.seconds
    link = "NVLink" if topology.nvlink else "PCIe"
    where = f"{link} inside the node" if choice.bound == "intra" else f"the network ({topology.inter:g} GB/s per node)"
    if share >= 0.5:
        parts.append(f"{share:.0%} of its time are bytes over {where}")
    else:
        parts.append(f"{1 - share:.0%} of its time are launch, hand-overs and filling the pipeline, not bytes")
    relation = "below" if nbytes < half else "above"
    parts.append(f"{size(nbytes)} is {relation} the {size(half)} that reach half of the bandwidth")
    return "; ".join(parts)


def _against(topology: Topology, collective: str, nbytes: int, choice: Choice) -> str:
    best: dict[str, float] = {}
    for option in options(topology, nbytes, collective):
        time = option.microseconds(nbytes)
        best[option.algorithm] = min(time, best.get(option.algorithm, time))
    others = sorted((time, name) for name, time in best.items() if name != choice.algorithm)
    mine = f"{choice.algorithm} with {PROTOCOLS[choice.protocol]}"
    if not others:
        return f"{mine}: the only way here"
    time, name = others[0]
    return f"{mine}: NCCL's model gives {best[choice.algorithm]:.0f} us to it and {time:.0f} us to {name}"


def _factors(case: "Case", ranks: int, traffic: dict[str, Traffic]) -> dict[str, Band]:
    step = step_seconds(case)
    if step is None:
        return {}
    share = Band(low=step.low / ranks, expected=step.expected / ranks, high=step.high / ranks)
    return {name: slowed(each, share) for name, each in traffic.items()}


def _advice(topology: Topology, traffic: dict[str, Traffic], factors: dict[str, Band]) -> str:
    if "hsdp" not in traffic:
        return "one node: shard over all of its GPUs" if topology.nodes == 1 else "shard over all GPUs"
    cost = {name: factors[name].expected if factors else each.total for name, each in traffic.items()}
    totals = f"{1e3 * traffic['hsdp'].total:.1f} ms of collectives a step against {1e3 * traffic['fsdp'].total:.1f} ms"
    if cost["fsdp"] > NOTABLE * cost["hsdp"]:
        return f"shard over the node, replicate across nodes (HSDP), if a node's share fits: {totals}"
    if cost["hsdp"] > NOTABLE * cost["fsdp"]:
        return f"shard over all {topology.ranks} GPUs: replicating across nodes would take {totals}"
    return (
        f"shard over all {topology.ranks} GPUs: it saves the most, and replicating across nodes gains little: {totals}"
    )
