"""Where a job's GPUs are: from `--topology 4x8:h100-80gb:nvlink:ib400`, or from what the job says of itself."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ...configs.loader import GpuSpec, gpu, parse_size
from ...errors import OomdocError
from .links import card, table
from .nccl_tuning import Topology

if TYPE_CHECKING:
    from ..interface import Job

DEFAULT_NETWORK = "ib400"
INTRA = ("nvlink", "pcie", "sys")
EXAMPLE = "4x8:h100-80gb:nvlink:ib400"


def parsed(text: str, job: "Job") -> "Job":
    """The job on NODESxGPUS[:CARD[:nvlink|pcie|sys[:NETWORK]]]. Raises OomdocError for what it cannot be."""
    shape, *rest = text.split(":")
    nodes, found, per_node = shape.rpartition("x")
    if not per_node.isdecimal() or (found and not nodes.isdecimal()) or int(per_node) < 1 or int(nodes or 1) < 1:
        raise OomdocError(f"--topology {text}: begin with NODESxGPUS, as in {EXAMPLE}")
    if len(rest) > 3:
        raise OomdocError(f"--topology {text} has {1 + len(rest)} parts; it takes 4, as in {EXAMPLE}")
    named = gpu(rest[0]).name if rest and rest[0] else job.gpu
    intra = rest[1] if len(rest) > 1 and rest[1] else None
    if intra is not None and intra not in INTRA:
        raise OomdocError(f"--topology {text}: inside a node it is {', '.join(INTRA)}, not {intra}")
    if intra == "nvlink" and named is not None and gpu(named).nvlink_bandwidth is None:
        raise OomdocError(f"--topology {text}: {gpu(named).title} has no NVLink; write pcie")
    network = rest[2] if len(rest) > 2 and rest[2] else None
    if network is not None and network not in table()["network"]:
        raise OomdocError(f"--topology {text}: no network called {network}; known: {', '.join(table()['network'])}")
    count = int(nodes or 1)
    return replace(
        job, gpu=named, world_size=count * int(per_node), nnodes=count, intra_link=intra, network=network or job.network
    )


def topology_of(job: "Job") -> Topology:
    """NVLink where the card has it; between nodes InfiniBand of 400 Gbit/s per GPU unless the job names another."""
    spec = card(job.gpu)
    nodes = max(1, job.nnodes)
    per_node = max(1, job.world_size // nodes)
    major = spec.compute_capability[0] if spec else 8
    architecture = {7: "volta", 8: "ampere", 9: "hopper"}.get(major, "blackwell")
    nvlink = spec is not None and spec.nvlink_bandwidth is not None and job.intra_link in (None, "nvlink")
    network = table()["network"][job.network or DEFAULT_NETWORK]
    return Topology(
        gpus_per_node=per_node,
        nodes=nodes,
        architecture=architecture,
        intra=_inside(spec, architecture, job.intra_link, nvlink),
        inter=float(network["gigabytes_per_second"]) * per_node,
        nvlink=nvlink,
        nvls=nvlink and major >= 9,
        nics=max(1, network["nics"] * per_node // 8),
        network_latency=float(network.get("latency_us", 0.0)),
        buffer_bytes=parse_size(network.get("buffer", "4 MiB")) if nodes > 1 else 4 << 20,
    )


def across_nodes(topology: Topology) -> Topology:
    """One GPU of each node: the group that replicates what is sharded inside a node; all such groups share the NICs."""
    return replace(
        topology,
        gpus_per_node=1,
        inter=topology.inter / topology.gpus_per_node,
        nics=max(1, topology.nics // topology.gpus_per_node),
    )


def inside_node(topology: Topology) -> Topology:
    return replace(topology, nodes=1)


def _inside(spec: GpuSpec | None, architecture: str, link: str | None, nvlink: bool) -> float:
    """GB/s per GPU and direction."""
    links = table()
    if nvlink and spec is not None and spec.nvlink_bandwidth is not None:
        whole = links["nvlink"][architecture]
        return min(spec.nvlink_bandwidth / 2e9, float(whole["per_link"]) * float(whole["links"]))
    key = "sys" if link == "sys" else f"pcie{spec.pcie_generation if spec else 4}"
    return float(links["pcie_node"][key])
