"""The published nccl-tests measurements of whole systems, and the model's error over them."""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from oomdoc.remedies.costs.collectives import KERNEL_US, LAUNCH_US, Choice, all_gather, all_reduce, reduce_scatter
from oomdoc.remedies.costs.nccl_tuning import Topology
from oomdoc.remedies.costs.topology import parsed, topology_of
from oomdoc.remedies.interface import Job

MIB = 1 << 20
MODELS: dict[str, Callable[..., Choice]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
}
CARDS = {"A100": "a100-80gb", "H100": "h100-80gb", "H200": "h200", "B200": "b200", "V100": "v100-16gb"}
# words of the file's columns -> names of configs/links.yaml; one word must decide, no system has an entry of its own
NETWORKS = {
    "EFA 4x100": "efa100",
    "EFA": "efa400",
    "8x200G": "ib200",
    "1600 Gb": "ib200",
    "400G": "ib400",
    "3200": "ib400",
}
TORCH_BENCHMARKS = "stas00/ml-engineering"  # its figures are those of all_reduce_bench.py, which uses torch.distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One published curve: messages of `nbytes` took `microseconds`; `line` is the best alpha-beta line's error."""

    name: str
    collective: str
    topology: Topology
    algorithm: str | None
    launch_us: float  # of the tool: nccl-tests keeps a queue of collectives, a benchmark of torch calls one by one
    nbytes: NDArray[np.int64]
    microseconds: NDArray[np.float64]

    def errors(self) -> NDArray[np.float64]:
        """Predicted over measured, less one."""
        model = MODELS[self.collective]
        found = [model(self.topology, int(n), self.algorithm) for n in self.nbytes]
        times = [(each.seconds - each.launch) * 1e6 + self.launch_us for each in found]
        return np.array(times) / self.microseconds - 1

    def line_errors(self) -> NDArray[np.float64]:
        """Of the one latency and one bandwidth that fit this curve best, in the least squares of relative errors."""
        parts = np.stack([1 / self.microseconds, self.nbytes / self.microseconds], axis=1)
        best, *_ = np.linalg.lstsq(parts, np.ones(len(parts)), rcond=None)
        return parts @ best - 1


def systems(shared: Path) -> Iterator[System]:
    """Every NVIDIA system of the file whose links are named in it."""
    rows = defaultdict(list)
    columns = ("collective", "gpus", "nodes", "gpu", "intra_link", "inter_link", "nccl_version_or_algo", "source")
    with (shared / "data" / "nccl_measured.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            rows[tuple(row[each] for each in columns)].append(row)
    for key, found in rows.items():
        collective, gpus, nodes, gpu, intra, inter, version, source = key
        topology = _topology(int(gpus), int(nodes), gpu, intra, inter)
        if topology is None:
            continue
        if "NVLS off" in version or version.endswith(" Ring"):
            topology = replace(topology, nvls=False)
        forced = {"ring": "ring", "nvlstree": "nvls_tree"}[version.split()[-1]] if "forced" in version else None
        points = sorted((max(64, int(row["size_bytes"])), _microseconds(row)) for row in found)
        yield System(
            name=f"{nodes} x {int(gpus) // int(nodes)} {gpu} {version}".strip(),
            collective=collective,
            topology=topology,
            algorithm=forced,
            launch_us=LAUNCH_US if TORCH_BENCHMARKS in source else KERNEL_US,
            nbytes=np.array([each[0] for each in points]),
            microseconds=np.array([each[1] for each in points]),
        )


def _topology(gpus: int, nodes: int, gpu: str, intra: str, inter: str) -> Topology | None:
    card = next((card for word, card in CARDS.items() if word in gpu), None)
    network = next((name for word, name in NETWORKS.items() if word in inter or word in gpu), None)
    if network is None and "A3-Mega" in gpu:
        network = "ib200"  # 8 x 200 Gbit/s, by the other row of that class
    if card is None or (nodes > 1 and network is None):
        return None
    inside = "sys" if "QPI" in intra else ""
    text = f"{nodes}x{gpus // nodes}:{card}:{inside}:{network or ''}"
    return topology_of(parsed(text, Job(gpu=None, capacity_bytes=None, world_size=1)))


def _microseconds(row: dict[str, str]) -> float:
    """From the bus bandwidth where no time was published."""
    n = int(row["gpus"])
    factor = (n - 1) / n * (2 if row["collective"] == "all_reduce" else 1)
    return float(row["time_us"] or int(row["size_bytes"]) * factor / float(row["busbw_GBps"]) / 1e3)
