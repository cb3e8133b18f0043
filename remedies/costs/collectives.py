"""How long a collective takes: the pipeline of the algorithm that NCCL chooses, step by step and slice by slice.

NCCL's own model (`nccl_tuning`) decides between algorithms and is up to 50 % short of what the choice then takes:
it knows no filling of the pipeline, and no hand-over per slice. Here a message is cut as NCCL cuts it
(NVIDIA/nccl@5067397c src/enqueue.cc calcCollChunking, src/device/all_reduce.h), every hand-over costs NCCL's latency
of that link and protocol, and every byte the rate of the slowest link on its way.
Compared with published measurements in `tests/benchmarks/test_bench_collectives.py`.
"""

from dataclasses import dataclass
from math import log2

from .nccl_tuning import (
    BASE_LATENCY,
    LL,
    LL128,
    LL_MAX,
    NVLS_EFFICIENCY,
    NVLS_LATENCY,
    NVLS_TREE_NET_LATENCY,
    PROTOCOLS,
    RING_LL128_CHANNEL,
    SIMPLE,
    TREE_CHANNEL,
    TREE_LL128_CHANNEL,
    Topology,
    chosen,
    hop_latency,
    options,
    ring_steps,
    step_latency,
    tree_bus,
)

# From the call to the first byte. NCCL's base latencies are measured inside one stream of kernels: between two of them
# lies the start of a kernel. torch adds its host code and the two waits by which it puts the collective between the
# work of the compute stream; a queue of collectives alone (nccl-tests) hides them.
KERNEL_US, TORCH_US = 5.0, 20.0
LAUNCH_US = KERNEL_US + TORCH_US
NETWORK_SHARE = 0.97  # of the specification: ib_write_bw over EFA 96.9 % (stas00/ml-engineering network/README.md)
STEPS = 8  # slots of a channel's buffer
SLICES, LEAST_SLICE = 2, 32 << 10  # of a ring's chunk under Simple: sent one after the other, each handed over
NVLS_CHANNELS = {"hopper": 16, "blackwell": 32}  # 24 on several nodes of Blackwell
NVLS_SYNC_US = 1.0  # one hand-over through the switch: a multimem flag, NVLink's LL latency and its poll
THREADS, THREAD_BYTES = (512, 640, 512), (8, 8, 64)  # of a channel; that each has to have before another one is taken
LEAST_TRAFFIC = 32 << 10  # of a channel
LL_CHUNK, LL128_CHUNK, TREE_CHUNK = 32 << 10, 576_000, 512 << 10


@dataclass(frozen=True, slots=True)
class Choice:
    """The way NCCL takes and its time. `launch`, `latency`, `transfer` add up to `seconds`."""

    algorithm: str
    protocol: int
    seconds: float
    launch: float = 0.0
    latency: float = 0.0  # hand-overs and the filling of the pipeline
    transfer: float = 0.0  # bytes over the slowest link
    bound: str = "none"  # which link that is: intra | inter

    @property
    def protocol_name(self) -> str:
        return PROTOCOLS[self.protocol]


def all_reduce(topology: Topology, nbytes: int, algorithm: str | None = None) -> Choice:
    """`nbytes` per rank. `algorithm` forces one, as NCCL_ALGO does."""
    return _timed(topology, nbytes, "all_reduce", algorithm)


def all_gather(topology: Topology, nbytes: int, algorithm: str | None = None) -> Choice:
    """`nbytes` is the whole result, the shards of all ranks together."""
    return _timed(topology, nbytes, "all_gather", algorithm)


def reduce_scatter(topology: Topology, nbytes: int, algorithm: str | None = None) -> Choice:
    """`nbytes` is the whole input of a rank."""
    return _timed(topology, nbytes, "reduce_scatter", algorithm)


def half_bandwidth_bytes(topology: Topology, collective: str = "all_reduce") -> int:
    """The power of two from which on a message gets half of the bandwidth that a very large one gets."""
    large = 1 << 34
    best = large / _timed(topology, large, collective, None).seconds
    for power in range(12, 34):
        size = 1 << power
        if size / _timed(topology, size, collective, None).seconds >= best / 2:
            return size
    return large


def _timed(topology: Topology, nbytes: int, collective: str, algorithm: str | None) -> Choice:
    if topology.ranks < 2 or nbytes <= 0:
        return Choice("none", SIMPLE, 0.0)
    if algorithm is None:
        option = chosen(topology, nbytes, collective)
    else:
        allowed = [each for each in options(topology, nbytes, collective) if each.algorithm == algorithm]
        option = min(allowed, key=lambda each: each.microseconds(nbytes))
    name, protocol = option.algorithm, option.protocol
    if name == "ring":
        latency, rate, bound = _ring(topology, nbytes, collective, protocol)
    elif name == "tree":
        latency, rate, bound = _tree(topology, nbytes, protocol)
    else:
        latency, rate, bound = _nvls(topology, nbytes, collective)
    transfer = nbytes / (1000 * rate)
    micro = 1e-6
    return Choice(
        name,
        protocol,
        (LAUNCH_US + latency + transfer) * micro,
        LAUNCH_US * micro,
        latency * micro,
        transfer * micro,
        bound,
    )


def _network(topology: Topology) -> float:
    return NETWORK_SHARE * topology.inter


def _hop(topology: Topology, algorithm: str, protocol: int) -> float:
    """Between nodes. NCCL counts the plugin's latency twice under Simple, for a flush that stays inside the node."""
    return hop_latency(topology, algorithm, protocol) - (topology.network_latency if protocol == SIMPLE else 0.0)


def _used_channels(topology: Topology, nbytes: int, collective: str, algorithm: str, protocol: int) -> float:
    """How many channels NCCL gives to a message: each thread has something to do, each channel 32 KiB of traffic.

    enqueue.cc: topoGetAlgoInfo (a ring's LL counts its ranks) and scheduleCollTasksToPlan. A channel that has the
    links of a found one to itself reaches that one's rate. Whole channels would make steps; between them it is even.
    """
    threads = THREADS[protocol] * THREAD_BYTES[protocol]
    if protocol == LL and algorithm == "ring":
        threads *= topology.ranks
    traffic = nbytes * (2 if collective == "all_reduce" else 1)
    return max(1.0, min(float(topology.channels), nbytes / threads, traffic / LEAST_TRAFFIC))


def _ring(topology: Topology, nbytes: int, collective: str, protocol: int) -> tuple[float, float, str]:
    """Microseconds of latency, GB/s, the link that bounds.

    Every rank sends a chunk to the next one in each step. Under Simple a chunk is at most half a buffer and goes in
    two slices, each handed over by itself; a message larger than all chunks goes round again.
    """
    steps, between = ring_steps(topology, collective)
    inside, hop = step_latency(topology, "ring", protocol), _hop(topology, "ring", protocol)
    bound = "intra" if topology.nodes == 1 or topology.intra <= _network(topology) else "inter"
    bus = topology.intra if bound == "intra" else _network(topology)
    base = BASE_LATENCY["ring"][protocol]
    if protocol == SIMPLE:
        round_bytes = topology.ranks * topology.channels * topology.buffer_bytes // 2
        rounds = max(1.0, nbytes / round_bytes)
        slices = min(SLICES, max(1.0, nbytes / (topology.ranks * topology.channels * LEAST_SLICE)))
        latency = base + rounds * ((steps - between) * slices * inside + between * (hop + (slices - 1) * inside))
    else:
        latency = base + (steps - between) * inside + between * hop
        limit = topology.channels * RING_LL128_CHANNEL[topology.generation]
        share, most = (0.5, LL_MAX[topology.row][topology.generation]) if protocol == LL else (0.92, limit)
        used = _used_channels(topology, nbytes, collective, "ring", protocol)
        bus = min(share * bus * min(1.0, used / topology.found_channels), most)
    return latency, bus * topology.ranks / steps, bound


def _tree(topology: Topology, nbytes: int, protocol: int) -> tuple[float, float, str]:
    """A chain inside each node, a tree of the nodes; up and down at once, chunk after chunk.

    The first chunk passes every stage by itself, at the rate that one channel reaches: the pipeline's filling.
    """
    stages, levels = 2 * (topology.gpus_per_node - 1), 2 * log2(topology.nodes)
    latency = BASE_LATENCY["tree"][protocol] + stages * step_latency(topology, "tree", protocol)
    latency += levels * _hop(topology, "tree", protocol)
    chunk = _tree_chunk(topology, nbytes, protocol)
    channel = (TREE_LL128_CHANNEL if protocol == LL128 else TREE_CHANNEL)[topology.row][topology.generation]
    if topology.intra < channel:
        channel = topology.intra
    latency += stages * chunk / (1000 * channel)
    if topology.nodes > 1:
        latency += levels * chunk * topology.channels / (1000 * _network(topology))
    used = _used_channels(topology, nbytes, "all_reduce", "tree", protocol)
    rate = 0.5 * tree_bus(topology, protocol, between=_network(topology)) * min(1.0, used / topology.found_channels)
    bound = "intra" if topology.nodes == 1 or tree_bus(topology, protocol, between=1e9) <= 2 * rate * 1.001 else "inter"
    return latency, rate, bound


def _tree_chunk(topology: Topology, nbytes: int, protocol: int) -> float:
    """Bytes of a chunk in one channel: NCCL halves LL128's until the pipeline has enough of them."""
    chunk = {LL: LL_CHUNK, LL128: LL128_CHUNK}.get(protocol, topology.buffer_bytes // STEPS)
    if protocol == LL128:
        levels = 1 + log2(topology.nodes) + 0.1 * topology.gpus_per_node
        for wanted, least in ((64, 131072), (16, 32768)):
            while nbytes / (topology.channels * chunk) < levels * wanted / topology.gpus_per_node and chunk > least:
                chunk //= 2
    return min(chunk, nbytes / topology.channels)


def _nvls(topology: Topology, nbytes: int, collective: str) -> tuple[float, float, str]:
    """Scatter into the switch's buffers, reduce through the switch, gather out: a pipeline of three stages.

    Each GPU's link carries the whole message once and its own share once more, so n GPUs get 1 / (1 + 1/n) of it.
    """
    n, generation = topology.gpus_per_node, topology.generation
    wire = topology.intra * NVLS_EFFICIENCY[generation]
    rate = wire / (1 + 1 / n) if collective == "all_reduce" else wire
    at_once = min(NVLS_CHANNELS[topology.architecture], 32 if topology.nodes == 1 else 24) * n
    round_bytes = at_once * _nvls_chunk(nbytes, at_once)
    rounds = max(1.0, nbytes / round_bytes)
    filling = min(nbytes, round_bytes)
    latency = NVLS_LATENCY + rounds * NVLS_SYNC_US + 2 * filling / (1000 * wire)
    bound = "intra"
    if topology.nodes > 1:
        levels = 2 * log2(topology.nodes)
        network = _network(topology) / (1 if topology.nodes == 2 else 2)
        latency += levels * (NVLS_TREE_NET_LATENCY + topology.network_latency)
        latency += levels * filling / (1000 * _network(topology))
        if network < rate:
            rate, bound = network, "inter"
    return latency, rate, bound


def _nvls_chunk(nbytes: int, at_once: int) -> int:
    chunk = 128 << 10
    for rounds, smaller in ((64, 65536), (8, 32768), (2, 16384)):
        if nbytes < rounds * at_once * chunk and chunk > smaller:
            chunk = smaller
    return chunk
