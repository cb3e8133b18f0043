"""Remedies that are made in the script by hand: predicted from the run without, against the run with them."""

import functools
import runpy
import sys
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

from conftest import SCRIPTS
from oomdoc.diagnosers.interface import Category, DeviceProfile
from oomdoc.diagnosers.profile import build
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import virtual_session
from oomdoc.remedies.all_remedies import REMEDIES
from oomdoc.remedies.estimating import Case, case_of
from oomdoc.remedies.interface import Estimate, Job, NotApplicable
from oomdoc.remedies.planner import estimate

CARD = GpuTarget(
    name="a100-80gb",
    total_bytes=80 << 30,
    context_bytes=500 << 20,
    sm_count=108,
    threads_per_sm=2048,
    compute_capability=(8, 0),
)
MIXER = ("mixer", "--steps", "2", "--width", "256", "--length", "128")
SMALL = ("--batch-size", "2")
LARGE = ("--batch-size", "32")


@functools.cache
def trained(*arguments: str) -> DeviceProfile:
    """The script in this process: its snapshot as PyTorch's own recording would be, without oomdoc's key."""
    before = sys.argv
    sys.argv = ["train_zoo.py", *arguments]
    try:
        with virtual_session(CARD) as session:
            runpy.run_path(str(SCRIPTS / "train_zoo.py"), run_name="__main__")
            return build([session.snapshot()]).devices[0]
    finally:
        sys.argv = before


def job(ranks: int = 1, nodes: int = 1) -> Job:
    return Job(gpu="a100-80gb", capacity_bytes=None, world_size=ranks, nnodes=nodes, batch_size=32)


def predicted(name: str, *arguments: str, ranks: int = 1, nodes: int = 1) -> tuple[Estimate, ...]:
    found = estimate(name, trained(*MIXER, *arguments), job(ranks, nodes))
    assert not isinstance(found, NotApplicable), found
    return found


def peak(*arguments: str) -> int:
    return case_of(trained(*MIXER, *arguments), job()).allocated_before


@pytest.mark.parametrize(
    ("name", "without", "with_it"),
    [
        ("set-to-none", (*LARGE, "--keep-gradients"), LARGE),
        ("optimizer-in-backward", SMALL, (*SMALL, "--step-in-backward")),
        ("selective-checkpointing", LARGE, (*LARGE, "--keep-products")),
        ("map-location", (*SMALL, "--load", "cuda"), (*SMALL, "--load", "cpu")),
        ("bf16-parameters", LARGE, (*LARGE, "--bf16")),
    ],
)
def test_the_prediction_holds(name: str, without: tuple[str, ...], with_it: tuple[str, ...]) -> None:
    found = predicted(name, *without)[0]
    seen, plain = peak(*with_it), peak(*without)
    band = found.predicted_peak_bytes
    assert band.low <= seen <= band.high, (name, band, seen)
    assert abs(band.expected - seen) <= 0.08 * seen
    assert seen < plain
    assert found.saves_bytes > 0


@pytest.mark.slow
def test_attention_without_scores() -> None:
    pytest.importorskip("transformers")
    arguments = ("gpt2", "--steps", "2", "--length", "512", "--attention")
    plain, seen = trained(*arguments, "eager"), case_of(trained(*arguments, "sdpa"), job()).allocated_before
    found = estimate("flash-attention", plain, job())
    assert not isinstance(found, NotApplicable)
    assert found[0].predicted_peak_bytes.low <= seen <= found[0].predicted_peak_bytes.high
    assert isinstance(estimate("flash-attention", trained(*arguments, "sdpa"), job()), NotApplicable)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("set-to-none", "no gradient of an earlier step"),
        ("map-location", "torch.load put nothing"),
        ("flash-attention", "no softmax inside the model"),
        ("gradient-as-bucket-view", "no DistributedDataParallel"),
        ("wrapping-policy", "not sharded"),
        ("limit-all-gathers", "not sharded"),
        ("zero-1", "one GPU"),
        ("zero-2", "one GPU"),
        ("hsdp", "one node"),
        ("tensor-parallel", "one GPU"),
        ("context-parallel", "one GPU"),
        ("pipeline-parallel", "one GPU"),
        ("length-bucketing", "fewer than three"),
    ],
)
def test_what_does_not_apply_says_why(name: str, why: str) -> None:
    found = estimate(name, trained(*MIXER, *LARGE), job())
    assert isinstance(found, NotApplicable)
    assert why in found.reason


def _held(case: Case, *categories: Category) -> int:
    return case.timeline.take(np.flatnonzero(case.timeline.is_category(*categories))).peak().bytes


def test_the_stages_of_zero_keep_a_part_of_each_more() -> None:
    """By arithmetic: a rank's part of state, of gradients, of parameters (a stage each)."""
    case = case_of(trained(*MIXER, *LARGE), job(8))
    changed = {name: REMEDIES[name].change(case, {}) for name in ("zero-1", "zero-2")}
    state = _held(case, Category.OPTIMIZER_STATE)
    for name, change in changed.items():
        assert not isinstance(change, NotApplicable)
        after = Case(profile=case.profile, job=case.job, facts=case.facts, timeline=change.expected)
        assert _held(after, Category.OPTIMIZER_STATE) == pytest.approx(state / 8, rel=0.01)
        whole = _held(case, Category.GRADIENT)
        assert _held(after, Category.GRADIENT) == pytest.approx(whole if name == "zero-1" else whole / 8, rel=0.01)
        assert _held(after, Category.PARAMETER) == _held(case, Category.PARAMETER)


def test_eight_bit_moments_take_a_quarter_and_their_scales() -> None:
    case = case_of(trained(*MIXER, *LARGE), job())
    change = REMEDIES["eight-bit-optimizer"].change(case, {})
    assert not isinstance(change, NotApplicable)
    after = Case(profile=case.profile, job=case.job, facts=case.facts, timeline=change.expected)
    before = _held(case, Category.OPTIMIZER_STATE)
    assert _held(after, Category.OPTIMIZER_STATE) == pytest.approx(before * (1 + 4 / 256) / 4, rel=0.02)


def test_sequence_parallel_splits_all_that_a_block_makes_and_tensor_parallel_less() -> None:
    case = case_of(trained(*MIXER, *LARGE), job(4))
    inside = np.zeros(len(case.timeline), np.bool_)
    for path in case.facts.blocks:
        inside |= case.timeline.under(path)
    totals = {}
    for sequence in (False, True):
        change = REMEDIES["tensor-parallel"].change(case, {"degree": 4, "sequence_parallel": sequence})
        assert not isinstance(change, NotApplicable)
        forward = inside & case.timeline.is_category(Category.ACTIVATION)
        totals[sequence] = int(change.expected.size[: len(inside)][forward].sum())
    whole = int(case.timeline.size[inside & case.timeline.is_category(Category.ACTIVATION)].sum())
    assert totals[True] == pytest.approx(whole / 4, rel=0.01)
    assert whole / 4 < totals[False] < whole


def test_a_pipeline_waits_for_its_ends_and_shares_the_blocks() -> None:
    found = predicted("pipeline-parallel", *LARGE, ranks=4)[0]
    options = found.settings[0].options
    assert (options["stages"], options["micro_batches"]) == (4, 16)
    assert found.step_time_factor.expected == pytest.approx(1 + 3 / 16)


def test_drives_are_slower_than_host_memory_and_save_as_much_of_the_card() -> None:
    drive, host = predicted("nvme-offload", *LARGE)[0], predicted("cpu-offload", *LARGE)[0]
    assert drive.predicted_peak_bytes.expected == host.predicted_peak_bytes.expected
    assert drive.step_time_factor.expected > host.step_time_factor.expected


def test_what_trains_something_else_is_labelled() -> None:
    for name in ("lora", "qlora"):
        found = predicted(name, *LARGE)[0]
        assert found.numerics.value == "changed"
        assert "trains something else" in found.why
    both = [predicted(name, *SMALL)[0].predicted_peak_bytes.expected for name in ("qlora", "lora")]
    assert both[0] < both[1]


def test_a_byte_budget_takes_the_fewest_blocks() -> None:
    plain = trained(*MIXER, *LARGE)
    whole = case_of(plain, job()).allocated_before
    tight = Job(gpu="a100-80gb", capacity_bytes=int(0.85 * whole), world_size=1, batch_size=32)
    found = estimate("selective-checkpointing", plain, tight)
    assert not isinstance(found, NotApplicable)
    chosen = next(each for each in found if "blocks" in each.settings[0].options)
    assert 1 <= chosen.settings[0].options["blocks"] < 6
    assert chosen.predicted_peak_bytes.expected <= 0.85 * whole
    change: Callable[..., object] = REMEDIES["selective-checkpointing"].change
    fewer = change(case_of(plain, tight), {"blocks": chosen.settings[0].options["blocks"] - 1, "modules": ["Layer"]})
    if not isinstance(fewer, NotApplicable):
        assert fewer.expected.peak().bytes > 0.97 * 0.85 * whole  # type: ignore[attr-defined]
