"""NCCL's model against published measurements, and what it must do whatever the numbers are."""

import csv
import itertools
from pathlib import Path

import pytest
from oomdoc.remedies.costs.collectives import Topology, all_gather, all_reduce, reduce_scatter

GIB = 1 << 30

A100 = Topology(gpus_per_node=8, nodes=1, architecture="ampere", intra=240.0, nvls=False)
H100 = Topology(gpus_per_node=8, nodes=1, architecture="hopper", intra=370.8)
H100_RING = Topology(gpus_per_node=8, nodes=1, architecture="hopper", intra=370.8, nvls=False)
B200 = Topology(gpus_per_node=8, nodes=1, architecture="blackwell", intra=721.8)
A100_X2 = Topology(gpus_per_node=8, nodes=2, architecture="ampere", intra=240.0, inter=200.0, nvls=False)
H200_X2 = Topology(gpus_per_node=8, nodes=2, architecture="hopper", intra=370.8, inter=400.0)
B200_X4 = Topology(gpus_per_node=8, nodes=4, architecture="blackwell", intra=721.8, inter=400.0)

# collective, GPU and link text as in nccl_measured.csv, and the topology they mean
SYSTEMS = [
    ("all_reduce", "A100-80G SXM", 1, "", A100),
    ("all_reduce", "A100 SXM (Azure ND A100 v4)", 1, "", A100),
    ("all_reduce", "A100 SXM (Azure ND A100 v4)", 2, "", A100_X2),
    ("all_reduce", "H100 SXM", 1, "", H100),
    ("all_reduce", "H200 SXM", 1, "2.27.7 NVLS (Ring LL <=1MiB)", H100),
    ("all_gather", "H200 SXM", 1, "2.27.7 Ring", H100_RING),
    ("reduce_scatter", "H200 SXM", 1, "2.27.7 Ring", H100_RING),
    ("all_reduce", "H200 (Dell XE9680)", 2, "2.30.4", H200_X2),
    ("all_reduce", "H100-80G (OCI BM.GPU.H100.8)", 2, "", H200_X2),
    ("all_reduce", "B200 (AWS p6-b200)", 1, "2.27.7", B200),
    ("all_reduce", "B200 (AWS p6-b200)", 4, "2.27.7", B200_X4),
]
MODELS = {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter}


def _measured(shared: Path, collective: str, gpu: str, nodes: int, version: str) -> list[tuple[int, float]]:
    """(bytes, microseconds) of one system; from the bus bandwidth where no time was published."""
    found = []
    with (shared / "data" / "nccl_measured.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            same = (row["collective"], row["gpu"], int(row["nodes"])) == (collective, gpu, nodes)
            if not same or row["nccl_version_or_algo"] != version or row["gpus_per_node"] != "8":
                continue
            size, n = int(row["size_bytes"]), int(row["gpus"])
            factor = (n - 1) / n * (2 if collective == "all_reduce" else 1)
            time = row["time_us"] or size * factor / float(row["busbw_GBps"]) / 1e3
            found.append((size, float(time)))
    return found


@pytest.mark.parametrize(("collective", "gpu", "nodes", "version", "topology"), SYSTEMS)
def test_large_messages_take_what_was_measured(
    shared: Path, collective: str, gpu: str, nodes: int, version: str, topology: Topology
) -> None:
    rows = [(size, time) for size, time in _measured(shared, collective, gpu, nodes, version) if size >= GIB]
    assert rows
    for size, measured_us in rows:
        choice = MODELS[collective](topology, size)
        assert choice.seconds * 1e6 == pytest.approx(measured_us, rel=0.20), (size, choice)


@pytest.mark.parametrize("model", MODELS.values())
@pytest.mark.parametrize("topology", [A100, H100, B200, A100_X2, H200_X2, B200_X4])
def test_more_bytes_never_take_less_time_and_one_rank_takes_none(model, topology: Topology) -> None:  # type: ignore[no-untyped-def]
    times = [model(topology, 1 << power).seconds for power in range(10, 35)]
    assert all(0 < a <= b for a, b in itertools.pairwise(times))
    alone = Topology(gpus_per_node=1, nodes=1, architecture="ampere", intra=240.0, nvls=False)
    assert model(alone, GIB).seconds == 0


def test_the_switch_to_ring_and_simple_comes_with_size() -> None:
    assert all_reduce(A100, 1 << 15).protocol == 0  # LL
    assert (all_reduce(A100, GIB).algorithm, all_reduce(A100, GIB).protocol) == ("ring", 2)
    assert all_reduce(H100, GIB).algorithm == "nvls"


def test_an_all_reduce_costs_about_a_gather_and_a_scatter_on_a_ring() -> None:
    both = all_gather(A100, GIB).seconds + reduce_scatter(A100, GIB).seconds
    assert all_reduce(A100, GIB).seconds == pytest.approx(both, rel=0.02)
