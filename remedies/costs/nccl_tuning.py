"""Which algorithm and protocol NCCL takes: its own tuning model, latency + bytes / bandwidth, evaluated for each pair.

Tables and formulas: NVIDIA/nccl@5067397c (2.30.7) src/graph/tuning.cc, src/graph/search.cc (the rates that a channel
may get), src/graph/connect.cc (channels are doubled after the search). GB/s (1e9) and microseconds, as there.
This model decides, in NCCL, and is not made to predict: `collectives` says how long the choice takes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

LL, LL128, SIMPLE = 0, 1, 2
PROTOCOLS = ("LL", "LL128", "Simple")
ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")

BASE_LATENCY = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
NVLINK_LATENCY = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
PCI_LATENCY = {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)}
NET_LATENCY = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
NVLS_LATENCY, NVLS_TREE_NET_LATENCY = 25.0, 20.9
NET_OVERHEAD = 1.0  # us to post one message; three for Simple

# by number of nodes (1, 2, more) and architecture
LL_MAX = ((39.0, 87.7, 141.0, 282.0), (39.0, 22.5, 45.0, 90.0), (20.4, 19.0, 35.0, 70.0))
RING_LL128_CHANNEL = (20.0, 20.0, 36.7, 40.0)
TREE_LL128_CHANNEL = ((20.0, 20.0, 36.7, 55.6), (20.0, 20.0, 36.7, 31.67), (20.0, 20.0, 29.0, 20.0))
TREE_CHANNEL = ((26.5, 24.0, 38.7, 70.0), (18.5, 23.6, 41.4, 42.8), (10.0, 17.8, 36.0, 24.0))
NVLS_TREE_CHANNEL = ((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 57.7, 96.0), (0.0, 0.0, 45.5, 80.0))
NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
# what one channel may get inside a node: the search takes the fastest that the links carry
HOPPER_SPEEDS = (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0)
BLACKWELL_SPEEDS = (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0)
RING_CHANNELS = {"volta": 6, "ampere": 12, "hopper": 12, "blackwell": 16}  # of a node with NVSwitch, before doubling
# treeCorrectionFactor[protocol][log2(bytes / 64)], in tenths
TREE_CORRECTION = (
    (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10, 10),
    (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10, 10),
    (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9, 9),
)
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """GPUs that are alike, in nodes that are alike.

    `intra`: GB/s per GPU and direction inside a node. `inter`: GB/s per node and direction between nodes, all NICs
    together, by specification. `network_latency`: microseconds that a message takes beyond InfiniBand's (EFA).
    """

    gpus_per_node: int
    nodes: int
    architecture: str
    intra: float
    inter: float = 0.0
    nvlink: bool = True
    nvls: bool = True  # NVSwitch with in-network reduction (Hopper and later)
    nics: int = 8  # per node
    network_latency: float = 0.0
    buffer_bytes: int = 4 * MIB  # NCCL_BUFFSIZE

    @property
    def ranks(self) -> int:
        return self.gpus_per_node * self.nodes

    @property
    def generation(self) -> int:
        return ARCHITECTURES.index(self.architecture)

    @property
    def row(self) -> int:
        """Of the tables by number of nodes."""
        return min(self.nodes, 3) - 1

    @property
    def found_channels(self) -> int:
        """Of the graph search: as many rings as NICs between nodes."""
        if self.nodes > 1:
            return max(2, min(self.nics, 8))
        return RING_CHANNELS[self.architecture] if self.nvlink else 1

    @property
    def channels(self) -> int:
        return 2 * self.found_channels


@dataclass(frozen=True, slots=True)
class Option:
    """One way to do a collective, and what NCCL's model says of it. `bandwidth`: bytes of the collective per ns."""

    algorithm: str  # ring | tree | nvls | nvls_tree
    protocol: int
    latency: float
    bandwidth: float

    def microseconds(self, nbytes: int) -> float:
        return self.latency + nbytes / (1000 * self.bandwidth) if self.bandwidth > 0 else float("inf")


def chosen(topology: Topology, nbytes: int, collective: str) -> Option:
    """What NCCL would take: `collective` is all_reduce, all_gather or reduce_scatter."""
    return min(options(topology, nbytes, collective), key=lambda option: option.microseconds(nbytes))


def options(topology: Topology, nbytes: int, collective: str) -> Iterator[Option]:
    """Every pair that the topology allows. LL128 needs NVLink inside a node; NVLS a switch that reduces."""
    for protocol in (LL, LL128, SIMPLE):
        if protocol == LL128 and not topology.nvlink:
            continue
        yield _ring(topology, nbytes, collective, protocol)
        if collective == "all_reduce":
            yield _tree(topology, nbytes, protocol)
    if topology.nvls and topology.generation >= 2 and topology.gpus_per_node > 2:
        if topology.nodes == 1:
            yield _nvls(topology, collective)
        elif collective == "all_reduce":
            yield _nvls_tree(topology, nbytes)


def ring_steps(topology: Topology, collective: str) -> tuple[int, int]:
    """Steps of a ring, and how many of them cross the network in the life of one chunk."""
    turns = 2 if collective == "all_reduce" else 1
    between = turns * (topology.nodes - 1) if topology.nodes > 1 else 0
    return turns * (topology.ranks - 1), between


def step_latency(topology: Topology, algorithm: str, protocol: int) -> float:
    """Of one hand-over inside a node."""
    inside = (NVLINK_LATENCY if topology.nvlink else PCI_LATENCY)[algorithm][protocol]
    if algorithm == "ring" and topology.nodes > 1:
        return max(inside, NET_OVERHEAD * (3.0 if protocol == SIMPLE else 1.0))
    return inside


def hop_latency(topology: Topology, algorithm: str, protocol: int) -> float:
    """Of one hand-over between nodes; Simple waits for the flush as well."""
    table = "tree" if topology.gpus_per_node == 1 else algorithm
    return NET_LATENCY[table][protocol] + topology.network_latency * (2 if protocol == SIMPLE else 1)


def _bus(topology: Topology) -> float:
    return topology.intra if topology.nodes == 1 else min(topology.intra, topology.inter)


def _ring(topology: Topology, nbytes: int, collective: str, protocol: int) -> Option:
    generation, channels = topology.generation, topology.found_channels
    bus = _bus(topology)
    if protocol == LL:
        bus = min(LL_MAX[topology.row][generation], 0.5 * bus)
    elif protocol == LL128:
        bus = min(0.92 * bus, channels * RING_LL128_CHANNEL[generation])
    steps, between = ring_steps(topology, collective)
    latency = BASE_LATENCY["ring"][protocol] + (steps - between) * step_latency(topology, "ring", protocol)
    latency += between * hop_latency(topology, "ring", protocol)
    plateau = nbytes / (topology.channels * topology.ranks) >= 64
    if protocol == SIMPLE and collective == "all_reduce" and topology.nodes > 1 and plateau:
        latency *= 1.9 if generation == 0 else 1.4
    return Option("ring", protocol, latency, bus * topology.ranks / steps)


def tree_bus(topology: Topology, protocol: int, *, between: float) -> float:
    """Bus bandwidth of a tree where the nodes are joined at `between` GB/s.

    Over two nodes each byte crosses the network once each way: the network allows twice its rate on the bus.
    """
    generation, row, channels = topology.generation, topology.row, topology.found_channels
    whole = topology.intra
    if topology.nodes > 1:
        whole = min(whole, between * (2 if topology.nodes == 2 else 1))
    bus = min(0.92 * whole, channels * TREE_CHANNEL[row][generation])
    if protocol == LL:
        return min(bus / 3.8, LL_MAX[row][generation])
    if protocol == LL128:
        share = 7 / 9 if topology.nodes == 1 else 120 / 128
        return min(bus * share, channels * TREE_LL128_CHANNEL[row][generation])
    return bus


def correction(nbytes: int, protocol: int) -> float:
    """Of a tree's bandwidth for messages of middle size."""
    index = int(log2(max(nbytes // 64, 1)))
    return TREE_CORRECTION[protocol][index] / 10 if index < 24 else 1.0


def _tree(topology: Topology, nbytes: int, protocol: int) -> Option:
    bus = tree_bus(topology, protocol, between=topology.inter) * correction(nbytes, protocol)
    latency = BASE_LATENCY["tree"][protocol] + 2 * (
        (topology.gpus_per_node - 1) * step_latency(topology, "tree", protocol)
        + log2(topology.nodes) * hop_latency(topology, "tree", protocol)
    )
    return Option("tree", protocol, latency, 0.5 * bus)


def _switch_channel(topology: Topology) -> float:
    """GB/s of one of as many channels as there are GPUs, through the switch."""
    speeds = BLACKWELL_SPEEDS if topology.generation == 3 else HOPPER_SPEEDS
    share = topology.intra / topology.gpus_per_node
    return next((speed for speed in speeds if speed <= share), share)


def _nvls(topology: Topology, collective: str) -> Option:
    n = topology.gpus_per_node
    channel = _switch_channel(topology) * NVLS_EFFICIENCY[topology.generation] * (n - 1) / n
    if collective != "all_reduce":
        return Option("nvls", SIMPLE, NVLS_LATENCY, n * channel * (n - 1) / n)
    return Option("nvls", SIMPLE, NVLS_LATENCY, 2 * n * channel * n / (2 * (n - 1)))


def _nvls_tree(topology: Topology, nbytes: int) -> Option:
    n, channels = topology.ranks, topology.found_channels
    heads = topology.gpus_per_node
    inside = 2 * _switch_channel(topology) * NVLS_EFFICIENCY[topology.generation] * (heads - 1) / heads
    network = topology.inter / channels * (2 if topology.nodes == 2 else 1)
    bus = channels * min(inside, network, NVLS_TREE_CHANNEL[topology.row][topology.generation])
    bus *= correction(nbytes, SIMPLE) if topology.generation == 3 else 1.0
    latency = NVLS_LATENCY + 2 * log2(topology.nodes) * (NVLS_TREE_NET_LATENCY + 2 * topology.network_latency)
    return Option("nvls_tree", SIMPLE, latency, bus * n / (2 * (n - 1)))
