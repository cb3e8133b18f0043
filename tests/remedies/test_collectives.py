"""The model of collectives against published measurements, and what it must do whatever the numbers are."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from nccl_measurements import MIB, MODELS, systems
from oomdoc.errors import OomdocError
from oomdoc.remedies.costs.collectives import all_gather, all_reduce, half_bandwidth_bytes, reduce_scatter
from oomdoc.remedies.costs.nccl_tuning import Topology
from oomdoc.remedies.costs.sharding import fsdp_traffic
from oomdoc.remedies.costs.topology import parsed, topology_of
from oomdoc.remedies.interface import Job

GIB = 1 << 30
PLAIN = Job(gpu=None, capacity_bytes=None, world_size=1)


def at(text: str) -> Topology:
    return topology_of(parsed(text, PLAIN))


A100, H100, B200 = at("8:a100-80gb"), at("8:h100-80gb"), at("8:b200")
TOPOLOGIES = [
    A100, H100, B200, at("4:v100-16gb::"), at("4:l4"), at("2x8:a100-80gb::ib200"), at("4x8:b200::efa400"),
    at("2x8:h200"), at("16x1:h100-80gb"), at("8x4:a100-80gb-pcie::ethernet100"),
]  # fmt: skip


def test_the_published_measurements_are_met(shared: Path) -> None:
    """Median error over all rows, with no number fitted to a system."""
    large, small, plateau = [], [], []
    for system in systems(shared):
        errors = np.abs(system.errors())
        large += errors[system.nbytes >= MIB].tolist()
        small += errors[system.nbytes < MIB].tolist()
        plateau += errors[system.nbytes >= GIB].tolist()
    assert len(large) >= 180
    assert len(small) >= 40
    assert np.median(large) <= 0.12
    assert np.median(small) <= 0.17
    assert np.median(plateau) <= 0.06
    assert max(plateau) <= 0.20


def test_most_curves_are_met_better_than_by_the_line_fitted_to_them(shared: Path) -> None:
    """Curves over at least ten sizes: two free numbers each against none."""
    curves = [each for each in systems(shared) if len(each.nbytes) >= 10]
    ours = [float(np.median(np.abs(each.errors()[each.nbytes >= MIB]))) for each in curves]
    lines = [float(np.median(np.abs(each.line_errors()[each.nbytes >= MIB]))) for each in curves]
    assert len(curves) >= 8
    assert np.median(ours) < np.median(lines)
    assert sum(a < b for a, b in zip(ours, lines, strict=True)) > len(curves) / 2


@pytest.mark.parametrize("model", MODELS.values())
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_four_times_the_bytes_never_take_less_time_and_one_rank_takes_none(model, topology: Topology) -> None:  # type: ignore[no-untyped-def]
    """Between one size and the next NCCL may switch to what is faster: factor two may take a little less.

    While more bytes only bring more channels the time stays.
    """
    times = [model(topology, 1 << power).seconds for power in range(10, 35)]
    assert all(0 < a <= b * (1 + 1e-9) for a, b in zip(times, times[2:], strict=False))
    assert times[-1] > times[0]
    assert all(b > 0.8 * a for a, b in itertools.pairwise(times))
    assert model(at("1:a100-80gb"), GIB).seconds == 0


def test_the_parts_of_a_time_add_up() -> None:
    for topology in TOPOLOGIES:
        for power in (12, 22, 32):
            choice = all_reduce(topology, 1 << power)
            assert choice.launch + choice.latency + choice.transfer == pytest.approx(choice.seconds)


def test_the_switch_to_ring_and_simple_comes_with_size() -> None:
    assert all_reduce(A100, 1 << 15).protocol_name == "LL"
    large = all_reduce(A100, GIB)
    assert (large.algorithm, large.protocol_name, large.bound) == ("ring", "Simple", "intra")
    assert all_reduce(H100, GIB).algorithm == "nvls"
    assert all_reduce(at("2x8:h200"), GIB).algorithm == "nvls_tree"
    assert all_reduce(at("4:l4"), GIB).algorithm == "ring"
    assert all_reduce(at("2x8:a100-80gb::ib200"), GIB).bound == "inter"


def test_few_gpus_on_a_switch_take_the_ring() -> None:
    """Measured on H200 and B200: four GPUs gain nothing from the reduction in the switch, eight do."""
    assert all_reduce(at("4:h200"), 8 * GIB).algorithm == "ring"
    assert all_reduce(at("8:h200"), 8 * GIB).algorithm == "nvls"


def test_an_all_reduce_costs_about_a_gather_and_a_scatter_on_a_ring() -> None:
    both = all_gather(A100, GIB).seconds + reduce_scatter(A100, GIB).seconds
    assert all_reduce(A100, GIB).seconds == pytest.approx(both, rel=0.02)


def test_half_of_the_bandwidth_is_reached_where_it_was_measured() -> None:
    """8 x A100: 16 to 32 MiB; two nodes and more: 16 to 128 MiB."""
    assert 4 * MIB <= half_bandwidth_bytes(A100) <= 32 * MIB
    assert 8 * MIB <= half_bandwidth_bytes(at("2x8:a100-80gb::ib200")) <= 64 * MIB
    assert 32 * MIB <= half_bandwidth_bytes(at("4x8:b200::efa400")) <= 256 * MIB


def test_replicating_across_nodes_pays_where_the_network_is_the_bottleneck() -> None:
    """Three times the parameters cross the network once, or the gradients twice: 1.75 of the bytes against 3."""
    units = [100 << 20] * 32
    slow = at("8x8:h100-80gb::efa100")
    whole = fsdp_traffic(slow, units, reshard=True, replicate=False)
    hybrid = fsdp_traffic(slow, units, reshard=True, replicate=True)
    assert hybrid.total < 0.75 * whole.total
    one_node = at("8:h100-80gb")
    assert fsdp_traffic(one_node, units, reshard=True, replicate=True).total == pytest.approx(
        fsdp_traffic(one_node, units, reshard=True, replicate=False).total
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("axb", "begin with NODESxGPUS"),
        ("0x8", "begin with NODESxGPUS"),
        ("4x8:h100-80gb:token-ring", "nvlink, pcie, sys"),
        ("4x8:h100-80gb:nvlink:carrier-pigeon", "known: ib200"),
        ("4x8:l4:nvlink", "has no NVLink"),
        ("4x8:a:b:c:d", "takes 4"),
    ],
)
def test_a_topology_that_cannot_be_says_so(text: str, words: str) -> None:
    with pytest.raises(OomdocError, match=words):
        parsed(text, PLAIN)


def test_a_topology_says_where_the_job_runs() -> None:
    job = parsed("4x8:h100-80gb:nvlink:ib400", PLAIN)
    assert (job.gpu, job.world_size, job.nnodes) == ("h100-80gb", 32, 4)
    topology = topology_of(job)
    assert (topology.intra, topology.inter, topology.nics, topology.nvls) == (pytest.approx(370.8), 400.0, 8, True)
    assert topology_of(parsed("8:a100-80gb:pcie", PLAIN)).intra == 24.0
