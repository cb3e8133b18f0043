"""The price of collectives, by NCCL's own model: time = latency + bytes / bandwidth over ring, tree and NVLS.

Constants and formulas: NVIDIA/nccl@5067397c (2.30.7) src/graph/tuning.cc, src/include/graph.h, src/graph/topo.h.
Bandwidths are GB/s (1e9), times microseconds, as there. Measured plateaus that it is compared with:
`tests/remedies/test_collectives.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from ..interface import Band
from .links import card, table
from .step_time import step_seconds

if TYPE_CHECKING:
    from ..estimating import Case

LL, LL128, SIMPLE = 0, 1, 2
ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")

BASE_LATENCY = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "nvls": (0.0, 0.0, 0.0),
    "nvls_tree": (0.0, 0.0, 0.0),
}
NVLINK_LATENCY = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (25.0,) * 3, "nvls_tree": (25.0,) * 3}
PCI_LATENCY = {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "nvls": (0.0,) * 3, "nvls_tree": (0.0,) * 3}
NET_LATENCY = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "nvls": (18.0,) * 3, "nvls_tree": (20.9,) * 3}

# by number of nodes (1, 2, more) and architecture
LL_MAX = ((39.0, 87.7, 141.0, 282.0), (39.0, 22.5, 45.0, 90.0), (20.4, 19.0, 35.0, 70.0))
RING_LL128_CHANNEL = (20.0, 20.0, 36.7, 40.0)
TREE_LL128_CHANNEL = ((20.0, 20.0, 36.7, 55.6), (20.0, 20.0, 36.7, 31.67), (20.0, 20.0, 29.0, 20.0))
TREE_CHANNEL = ((26.5, 24.0, 38.7, 70.0), (18.5, 23.6, 41.4, 42.8), (10.0, 17.8, 36.0, 24.0))
NVLS_TREE_CHANNEL = ((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 57.7, 96.0), (0.0, 0.0, 45.5, 80.0))
NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
CHANNELS = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 32}
# treeCorrectionFactor[protocol][log2(bytes / 64)]
TREE_CORRECTION = (
    (
        1.0,
        1.0,
        1.0,
        1.0,
        0.9,
        0.8,
        0.7,
        0.7,
        0.7,
        0.7,
        0.6,
        0.5,
        0.4,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
    ),
    (
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        0.9,
        0.8,
        0.8,
        0.8,
        0.7,
        0.6,
        0.6,
        0.6,
        0.6,
        0.6,
        0.6,
        0.8,
        0.9,
        0.9,
        0.9,
        0.9,
        1.0,
        1.0,
        1.0,
    ),
    (
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.8,
        0.7,
        0.6,
        0.6,
        0.5,
        0.5,
        0.5,
        0.5,
        0.6,
        0.7,
        0.8,
        0.7,
        0.7,
        0.8,
        0.9,
        0.9,
        0.9,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`intra` and `inter`: GB/s per GPU and direction that a ring gets inside a node and between nodes."""

    gpus_per_node: int
    nodes: int
    architecture: str
    intra: float
    inter: float = 0.0
    nvlink: bool = True
    nvls: bool = True  # NVSwitch with in-network reduction (Hopper and later), more than two GPUs

    @property
    def ranks(self) -> int:
        return self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest way NCCL's model finds."""

    algorithm: str
    protocol: int
    seconds: float


def all_reduce(topology: Topology, nbytes: int) -> Choice:
    """`nbytes` per rank."""
    return _cheapest(topology, nbytes, "all_reduce")


def all_gather(topology: Topology, nbytes: int) -> Choice:
    """`nbytes` is the whole result, the shards of all ranks together."""
    return _cheapest(topology, nbytes, "all_gather")


def reduce_scatter(topology: Topology, nbytes: int) -> Choice:
    """`nbytes` is the whole input of a rank."""
    return _cheapest(topology, nbytes, "reduce_scatter")


def _cheapest(topology: Topology, nbytes: int, collective: str) -> Choice:
    if topology.ranks < 2 or nbytes <= 0:
        return Choice("none", SIMPLE, 0.0)
    return min(_choices(topology, nbytes, collective), key=lambda choice: choice.seconds)


def _choices(topology: Topology, nbytes: int, collective: str) -> Iterator[Choice]:
    for protocol in (LL, LL128, SIMPLE):
        if protocol == LL128 and not topology.nvlink:
            continue
        yield _ring(topology, nbytes, collective, protocol)
        if collective == "all_reduce":
            yield _tree(topology, nbytes, protocol)
    if topology.nvls and ARCHITECTURES.index(topology.architecture) >= 2:
        if topology.nodes == 1:
            yield _nvls(topology, nbytes, collective)
        elif collective == "all_reduce":
            yield _nvls_tree(topology, nbytes)


def _row(topology: Topology) -> int:
    return min(topology.nodes, 3) - 1


def _bus(topology: Topology) -> float:
    """nChannels * bw: of the links inside up to two nodes, of the network beyond."""
    return topology.intra if topology.nodes <= 1 else min(topology.intra, topology.inter)


def _intra_latency(topology: Topology, algorithm: str, protocol: int) -> float:
    return (NVLINK_LATENCY if topology.nvlink else PCI_LATENCY)[algorithm][protocol]


def _inter_latency(algorithm: str, protocol: int) -> float:
    latency = NET_LATENCY[algorithm][protocol] + (3.0 if protocol == SIMPLE else 1.0)
    return 2 * latency if protocol == SIMPLE else latency


def _ring(topology: Topology, nbytes: int, collective: str, protocol: int) -> Choice:
    n, nodes = topology.ranks, topology.nodes
    arch = ARCHITECTURES.index(topology.architecture)
    bus = _bus(topology)
    if protocol == LL:
        bus = min(LL_MAX[_row(topology)][arch], 0.5 * bus)
    elif protocol == LL128:
        bus = min(0.92 * bus, CHANNELS[topology.architecture] * RING_LL128_CHANNEL[arch])
    steps = 2 * (n - 1) if collective == "all_reduce" else n - 1
    between = 0 if nodes == 1 else (2 * (nodes - 1) if collective == "all_reduce" else nodes - 1)
    intra = _intra_latency(topology, "ring", protocol)
    latency = BASE_LATENCY["ring"][protocol] + (steps - between) * max(intra, 1.0 if nodes > 1 else 0.0)
    latency += between * _inter_latency("ring", protocol)
    if protocol == SIMPLE and collective == "all_reduce" and nodes > 1:
        per_channel = nbytes / (CHANNELS[topology.architecture] * n)
        latency *= 1.4 if per_channel >= 64 else 1.0
    return _choice("ring", protocol, latency, nbytes, bus * n / steps)


def _tree(topology: Topology, nbytes: int, protocol: int) -> Choice:
    n, nodes = topology.ranks, topology.nodes
    arch, row = ARCHITECTURES.index(topology.architecture), _row(topology)
    channels = CHANNELS[topology.architecture]
    # over two nodes each byte crosses the network once each way: the network allows twice its rate on the bus
    whole = min(topology.intra, 2 * topology.inter) if nodes == 2 else _bus(topology)
    bus = min(0.92 * whole, channels * TREE_CHANNEL[row][arch])
    if protocol == LL:
        bus = min(whole / 3.8, LL_MAX[row][arch])
    elif protocol == LL128:
        bus = min(whole * (7 / 9 if nodes == 1 else 120 / 128), channels * TREE_LL128_CHANNEL[row][arch])
    index = int(log2(max(nbytes // 64, 1)))
    if index < 24:
        bus *= TREE_CORRECTION[protocol][index]
    latency = BASE_LATENCY["tree"][protocol] + 2 * (
        (n / nodes - 1) * _intra_latency(topology, "tree", protocol) + log2(nodes) * _inter_latency("tree", protocol)
    )
    return _choice("tree", protocol, latency, nbytes, 0.5 * bus)


def _nvls(topology: Topology, nbytes: int, collective: str) -> Choice:
    arch = ARCHITECTURES.index(topology.architecture)
    channels = CHANNELS[topology.architecture]
    # an upper bound of the switch's in-network reduction; fewer ranks than 5 do not reach it
    bus = topology.intra * NVLS_EFFICIENCY[arch] * (channels - 1) / channels
    if collective != "all_reduce":
        return _choice(
            "nvls", SIMPLE, NVLINK_LATENCY["nvls"][SIMPLE], nbytes, bus * (topology.ranks - 1) / topology.ranks
        )
    return _choice("nvls", SIMPLE, NVLINK_LATENCY["nvls"][SIMPLE], nbytes, bus)


def _nvls_tree(topology: Topology, nbytes: int) -> Choice:
    arch, row, channels = ARCHITECTURES.index(topology.architecture), _row(topology), CHANNELS[topology.architecture]
    # reduced through the switch, then spread through it: its efficiency counts twice; 2.0 makes it a tree's bus
    switch = 2.0 * topology.intra * NVLS_EFFICIENCY[arch] ** 2 * (channels - 1) / channels
    network = topology.inter * (2 if topology.nodes == 2 else 1)
    bus = min(switch, network, channels * NVLS_TREE_CHANNEL[row][arch])
    latency = NVLINK_LATENCY["nvls_tree"][SIMPLE] + 2 * log2(topology.nodes) * NET_LATENCY["nvls_tree"][SIMPLE]
    return _choice("nvls_tree", SIMPLE, latency, nbytes, 0.5 * bus)


def _choice(algorithm: str, protocol: int, latency_us: float, nbytes: int, bandwidth: float) -> Choice:
    return Choice(
        algorithm, protocol, (latency_us + nbytes / (1000 * bandwidth)) / 1e6 if bandwidth > 0 else float("inf")
    )


def topology_of(case: "Case") -> Topology:
    """The job's GPUs; NVLink where the card has it; between nodes InfiniBand of 400 Gbit/s per GPU unless said."""
    spec = card(case.job.gpu)
    links = table()
    major = spec.compute_capability[0] if spec else 8
    architecture = {7: "volta", 8: "ampere", 9: "hopper"}.get(major, "blackwell")
    nodes = max(1, case.job.nnodes)
    nvlink = spec is not None and spec.nvlink_bandwidth is not None and case.job.link != "pcie"
    if nvlink and spec is not None and spec.nvlink_bandwidth is not None:
        whole = links["nvlink"][architecture]
        intra = min(spec.nvlink_bandwidth / 2e9, float(whole["per_link"]) * float(whole["links"]))
    else:
        intra = float(links["pcie_node"]["gigabytes_per_second"])
    network = links["network"].get(case.job.link or "ib400", links["network"]["ib400"])
    return Topology(
        gpus_per_node=max(1, case.job.world_size // nodes),
        nodes=nodes,
        architecture=architecture,
        intra=intra,
        inter=float(network["gigabytes_per_second"]) * min(8, max(1, case.job.world_size // nodes)),
        nvlink=nvlink,
        nvls=nvlink and major >= 9 and case.job.world_size // nodes > 2,
    )


def fsdp_factor(case: "Case", *, reshard_after_forward: bool) -> Band:
    """A step of FSDP over the same step without communication, each rank on its share of the batch.

    Low: all but the first gather is hidden behind computation; high: nothing is. Where the step time is not known:
    measured bands, x 1.02 (8 A100, NVLink) to x 2.5 (2 GPUs over PCIe, no overlap; litgpt).
    """
    topology = topology_of(case)
    step = step_seconds(case)
    if step is None:
        return Band(low=1.0, expected=1.05, high=1.3) if topology.nvlink else Band(low=1.1, expected=1.5, high=2.5)
    blocks = [case.facts.bytes_below(path) for path in case.facts.blocks]
    units = [*blocks, case.facts.parameter_bytes - sum(blocks)]
    gather = sum(all_gather(topology, n).seconds for n in units)
    scatter = sum(reduce_scatter(topology, n).seconds for n in units)
    total = gather * (2 if reshard_after_forward else 1) + scatter
    first = all_gather(topology, units[-1]).seconds + reduce_scatter(topology, units[-1]).seconds
    ranks = topology.ranks
    share = Band(low=step.low / ranks, expected=step.expected / ranks, high=step.high / ranks)
    return Band(
        low=1 + (first + max(0.0, total - first - share.high)) / share.high,
        expected=1 + (first + max(0.15 * total, total - first - share.expected)) / share.expected,
        high=1 + total / share.low,
    )
