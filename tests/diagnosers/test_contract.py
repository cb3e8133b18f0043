"""What holds of every cause: silent on nothing and on health, first on its own case, silent on a near miss."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from oomdoc.allocator.config import AllocatorConfig
from oomdoc.allocator.machine import OutOfMemory
from oomdoc.configs.loader import thresholds
from oomdoc.diagnosers.all_causes import DIAGNOSERS
from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.interface import Claim, Confidence, Diagnosis, MemoryProfile, Severity, StepBytes
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots.check import self_check
from oomdoc.snapshots.model import Frame, Snapshot

UNIT = 32 << 20  # sizes are multiples of it: segments of 20 MiB are small beside them
Kit = Any  # the namespace of conftest.kit
OWN: dict[str, Callable[[Kit], Snapshot]] = {}
NEAR: dict[str, Callable[[Kit], Snapshot]] = {}


def own(code: str) -> Callable[[Callable[[Kit], Snapshot]], Callable[[Kit], Snapshot]]:
    return lambda make: OWN.setdefault(code, make)


def near(code: str) -> Callable[[Callable[[Kit], Snapshot]], Callable[[Kit], Snapshot]]:
    return lambda make: NEAR.setdefault(code, make)


def findings(snapshot: Snapshot) -> Diagnosis:
    assert self_check(snapshot) == ()
    return diagnose(build([snapshot]))


def codes(snapshot: Snapshot) -> list[str]:
    return [finding.code for finding in findings(snapshot).findings]


# ---- own cases and near misses --------------------------------------------------------------------------------------


@own("OOM001")
def a_model_larger_than_the_card(kit: Kit) -> Snapshot:
    return kit.Training(capacity=200 * UNIT, layers=40).run().snapshot()


@near("OOM001")
def weights_are_a_fifth(kit: Kit) -> Snapshot:
    return kit.Training(capacity=250 * UNIT, activation=16 * UNIT).run().snapshot()


@own("OOM002")
def a_list_of_gradients_per_micro_batch(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=300 * UNIT, activation=UNIT // 2, logits=UNIT)
    with contextlib.suppress(OutOfMemory):
        job.build()
        for _ in range(8):
            job.backward(job.forward())
            job.gradients = []  # autograd.grad appended to a list: the next backward makes new ones
    return job.snapshot()


@near("OOM002")
def gradients_are_made_once(kit: Kit) -> Snapshot:
    return kit.Training(capacity=220 * UNIT, activation=8 * UNIT).run().snapshot()


@own("OOM003")
def adam_fits_until_its_state_is_there(kit: Kit) -> Snapshot:
    return kit.Training(capacity=210 * UNIT, activation=3 * UNIT, logits=UNIT).run().snapshot()


@near("OOM003")
def plain_sgd(kit: Kit) -> Snapshot:
    return kit.Training(capacity=180 * UNIT, activation=8 * UNIT, moments=0).run().snapshot()


@own("OOM004")
def a_batch_too_large(kit: Kit) -> Snapshot:
    return kit.Training(capacity=400 * UNIT, activation=24 * UNIT).run().snapshot()


@near("OOM004")
def activations_are_small(kit: Kit) -> Snapshot:
    return kit.Training(capacity=190 * UNIT, activation=UNIT, logits=UNIT).run().snapshot()


def _pinned(kit: Kit, request: int) -> Snapshot:
    """A big buffer per round, and small tensors that settle in it when it is free."""
    job = kit.Job(capacity=400 * UNIT)
    big = job.alloc(300 * UNIT, kit.script(50))
    job.free(big, kit.script(51))
    small = [job.alloc(6 * UNIT, kit.script(52)) for _ in range(40)]
    job.free(small[::2], kit.script(53))
    with contextlib.suppress(OutOfMemory):
        job.alloc(request, kit.script(50))
    return job.snapshot()


@own("OOM005")
def small_tensors_pin_a_large_segment(kit: Kit) -> Snapshot:
    return _pinned(kit, 160 * UNIT)


@near("OOM005")
def more_than_all_that_is_free(kit: Kit) -> Snapshot:
    job = kit.Job(capacity=400 * UNIT)
    with contextlib.suppress(OutOfMemory):
        for _ in range(100):
            job.alloc(30 * UNIT, kit.MOVE)
    return job.snapshot()


@own("OOM006")
def a_validation_loss_is_summed_with_its_graph(kit: Kit) -> Snapshot:
    return kit.Training(capacity=700 * UNIT, keep_loss=True).run(steps=20).snapshot()


@near("OOM006")
def only_the_last_graph_is_kept(kit: Kit) -> Snapshot:
    return kit.Training(capacity=1 << 40, keep_previous=True).run(steps=8).snapshot()


@own("OOM007")
def foreach_makes_a_copy(kit: Kit) -> Snapshot:
    return kit.Training(capacity=240 * UNIT, activation=UNIT, logits=UNIT, foreach=True).run().snapshot()


@near("OOM007")
def one_parameter_at_a_time(kit: Kit) -> Snapshot:
    return kit.Training(capacity=240 * UNIT, activation=UNIT, logits=UNIT, foreach=False).run().snapshot()


@own("OOM008")
def a_vocabulary_too_many(kit: Kit) -> Snapshot:
    return kit.Training(capacity=220 * UNIT, activation=UNIT, logits=96 * UNIT).run().snapshot()


@near("OOM008")
def small_logits_large_blocks(kit: Kit) -> Snapshot:
    return kit.Training(capacity=300 * UNIT, activation=16 * UNIT, logits=UNIT).run().snapshot()


@own("OOM009")
def scores_are_kept(kit: Kit) -> Snapshot:
    return kit.Training(capacity=300 * UNIT, activation=UNIT, scores=24 * UNIT).run().snapshot()


@near("OOM009")
def fused_attention(kit: Kit) -> Snapshot:
    return kit.Training(capacity=300 * UNIT, activation=24 * UNIT, scores=0).run().snapshot()


def _cast(kit: Kit, cast_bytes: int, **card: int) -> Snapshot:
    cast = Frame("??", 0, "at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)")
    job = kit.Training(**card)
    job.build()
    with contextlib.suppress(OutOfMemory):
        for _ in range(3):
            copies = [job.alloc(cast_bytes, kit.model(11, "forward", cast)) for _ in range(12)]
            last = job.alloc(4096, kit.model(12))
            leave = kit.script(60, Frame(kit.TORCH + "amp/autocast_mode.py", 360, "__exit__"))
            job.free([*copies, last], leave)
    return job.snapshot()


@own("OOM010")
def weights_are_cast_for_inference(kit: Kit) -> Snapshot:
    return _cast(kit, 2 * UNIT, capacity=71 * UNIT)


@near("OOM010")
def only_inputs_are_cast(kit: Kit) -> Snapshot:
    return _cast(kit, 3 * UNIT // 4)


@own("OOM011")
def inference_with_gradients_on(kit: Kit) -> Snapshot:
    job = kit.Training(activation=8 * UNIT)
    job.build()
    for _ in range(3):
        job.free(job.forward(), kit.script(40))
    return job.snapshot()


@near("OOM011")
def inference_without(kit: Kit) -> Snapshot:
    job = kit.Training()
    job.build()
    for _ in range(3):
        before = job.alloc(8 * UNIT, kit.model(10))
        for line in range(11, 60):
            after = job.alloc(8 * UNIT, kit.model(line))
            job.free(before, kit.model(line))
            before = after
        job.free(before, kit.script(40))
    return job.snapshot()


@own("OOM012")
def one_request_for_more_than_the_card(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=600 * UNIT, outside=1 << 30)
    with contextlib.suppress(OutOfMemory):
        job.build()
        job.alloc(700 * UNIT, kit.model(30))
    return job.snapshot()


@near("OOM012")
def a_request_for_less_than_the_card(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=600 * UNIT, outside=1 << 30)
    with contextlib.suppress(OutOfMemory):
        job.build()
        job.alloc(590 * UNIT, kit.model(30))
    return job.snapshot()


@own("OOM013")
def another_process_has_the_card(kit: Kit) -> Snapshot:
    return kit.Training(capacity=100 * UNIT, outside=8 << 30).run().snapshot()


@near("OOM013")
def a_context_is_outside(kit: Kit) -> Snapshot:
    return kit.Training(capacity=100 * UNIT, outside=600 << 20).run().snapshot()


@own("OOM014")
def predictions_are_collected(kit: Kit) -> Snapshot:
    return kit.Training(capacity=1 << 40, keep_output=24 * UNIT).run(steps=12).snapshot()


@near("OOM014")
def scalars_are_collected(kit: Kit) -> Snapshot:
    return kit.Training(capacity=1 << 40, keep_output=4).run(steps=12).snapshot()


@own("OOM015")
def the_loop_holds_its_last_outputs(kit: Kit) -> Snapshot:
    return kit.Training(activation=6 * UNIT, keep_previous=True, moments=0).run(steps=3).snapshot()


@near("OOM015")
def the_loop_lets_go(kit: Kit) -> Snapshot:
    return kit.Training(activation=6 * UNIT, moments=0).run(steps=3).snapshot()


def _with_loader(kit: Kit, size: int) -> Snapshot:
    job = kit.Training()
    job.build()
    data = [job.alloc(size, kit.LOADER) for _ in range(4)]
    for number in range(3):
        job.step(number)
    job.free(data, kit.script(90))
    return job.snapshot()


@own("OOM016")
def the_data_set_is_on_the_card(kit: Kit) -> Snapshot:
    return _with_loader(kit, 40 * UNIT)


@near("OOM016")
def four_batches_are_on_the_card(kit: Kit) -> Snapshot:
    return _with_loader(kit, UNIT)


def _generate(kit: Kit, size: int) -> Snapshot:
    update = Frame("/venv/lib/python3.12/site-packages/transformers/cache_utils.py", 119, "update")
    job = kit.Training()
    job.build()
    for _ in range(6):
        last = job.alloc(UNIT, kit.model(10))
        for layer in range(6):
            job.alloc(size, kit.model(20 + layer, "forward", update))
        job.free(last, kit.model(31))
        job.free(job.alloc(4096, kit.script(41)), kit.script(41))
    return job.snapshot()


@own("OOM017")
def a_long_generation(kit: Kit) -> Snapshot:
    return _generate(kit, 3 * UNIT)


@near("OOM017")
def a_short_generation(kit: Kit) -> Snapshot:
    return _generate(kit, 64 << 10)


def _gather(kit: Kit, size: int) -> Snapshot:
    gather = Frame(kit.TORCH + "distributed/fsdp/_fully_shard/_fsdp_param.py", 500, "alloc_all_gather_outputs")
    job = kit.Training(layers=2)
    job.build()
    whole = job.alloc(size, kit.model(9, "forward", gather))
    job.step(0)
    job.free(whole, kit.model(31))
    job.step(1)
    return job.snapshot()


@own("OOM018")
def the_model_is_one_fsdp_unit(kit: Kit) -> Snapshot:
    return _gather(kit, 64 * UNIT)


@near("OOM018")
def one_block_is_gathered(kit: Kit) -> Snapshot:
    return _gather(kit, 4 * UNIT)


def _convolve(kit: Kit, size: int) -> Snapshot:
    plan = Frame("Conv_v8.cpp", 0, "at::native::(anonymous namespace)::run_conv_plan(cudnnContext*, ...)")
    job = kit.Training()
    job.build()
    saved = job.forward()
    job.free(job.alloc(size, kit.model(15, "forward", plan)), kit.model(15))
    job.backward(saved)
    return job.snapshot()


@own("OOM019")
def cudnn_takes_its_fastest_plan(kit: Kit) -> Snapshot:
    return _convolve(kit, 256 * UNIT)


@near("OOM019")
def cudnn_takes_a_little(kit: Kit) -> Snapshot:
    return _convolve(kit, 16 * UNIT)


def _streams(kit: Kit, wait: bool) -> Snapshot:
    job = kit.Training()
    job.allocator.defer_streams = wait
    job.build()
    for _ in range(20):
        buffer = job.alloc(16 * UNIT, kit.script(70))
        job.allocator.record_stream(buffer, 7)
        job.free(buffer, kit.script(71))
        job.free(job.alloc(4096, kit.script(72)), kit.script(72))
    return job.snapshot()


@own("OOM020")
def frees_wait_for_a_stream(kit: Kit) -> Snapshot:
    return _streams(kit, wait=True)


@near("OOM020")
def frees_complete_in_time(kit: Kit) -> Snapshot:
    return _streams(kit, wait=False)


@own("OOM021")
def one_batch_is_four_times_as_long(kit: Kit) -> Snapshot:
    lengths = [1.0, 1.1, 0.9, 1.0, 1.05, 4.0]
    return kit.Training(capacity=420 * UNIT, activation=6 * UNIT, lengths=lengths).run(steps=8).snapshot()


@near("OOM021")
def every_batch_is_long(kit: Kit) -> Snapshot:
    lengths = [1.0, 1.1, 0.9, 1.0, 1.05, 1.3]
    return kit.Training(capacity=318 * UNIT, activation=6 * UNIT, lengths=lengths).run(steps=8).snapshot()


@own("OOM022")
def zero_grad_after_forward(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=270 * UNIT, activation=5 * UNIT, moments=1, zero_late=True)
    return job.run().snapshot()


@near("OOM022")
def zero_grad_after_step(kit: Kit) -> Snapshot:
    return kit.Training(capacity=200 * UNIT, activation=5 * UNIT, moments=1).run().snapshot()


def _copies(kit: Kit, times: int) -> Snapshot:
    copy = (Frame(kit.TORCH + "_tensor.py", 228, "__deepcopy__"), Frame("/usr/lib/python3.11/copy.py", 153, "deepcopy"))
    job = kit.Training()
    job.build()
    for _ in range(times):
        for size in job.sizes:
            job.alloc(size, kit.script(80, *copy))
    for number in range(3):
        job.step(number)
    return job.snapshot()


@own("OOM023")
def three_copies_of_the_model(kit: Kit) -> Snapshot:
    return _copies(kit, 3)


@near("OOM023")
def no_copy(kit: Kit) -> Snapshot:
    return _copies(kit, 0)


def _backward_needs(kit: Kit, size: int) -> Snapshot:
    job = kit.Training(capacity=1 << 40)
    job.build()
    saved = job.forward()
    temporaries = [job.alloc(size, kit.ENGINE) for _ in range(5)]
    job.free(temporaries, kit.ENGINE)
    job.backward(saved)
    job.optimizer_step()
    return job.snapshot()


@own("OOM024")
def backward_needs_five_matrices(kit: Kit) -> Snapshot:
    return _backward_needs(kit, 64 * UNIT)


@near("OOM024")
def backward_needs_little(kit: Kit) -> Snapshot:
    return _backward_needs(kit, 2 * UNIT)


# ---- the contract ---------------------------------------------------------------------------------------------------


def test_every_cause_has_its_cases_thresholds_and_page() -> None:
    assert set(DIAGNOSERS) == set(OWN) == set(NEAR)
    for code, cause in DIAGNOSERS.items():
        assert code == cause.CODE
        assert code in thresholds()
        page = cause.__doc__ or ""
        for section in ("What it means", "Evidence used", "Example", "Known limits", "What the remedies change"):
            assert section in page, f"{code}: {section}"
        assert cause.REMEDIES


def test_names_are_unique_and_kebab_case() -> None:
    names = [cause.NAME for cause in DIAGNOSERS.values()]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and " " not in name and "_" not in name for name in names)


def test_nothing_is_found_in_an_empty_snapshot(kit: SimpleNamespace) -> None:
    diagnosis = findings(kit.Job().snapshot())
    assert diagnosis.findings == ()
    assert diagnosis.inconclusive == ()


def test_a_healthy_run_gets_no_warning(healthy: Snapshot) -> None:
    assert [f for f in findings(healthy).findings if f.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("code", sorted(DIAGNOSERS))
def test_the_cause_is_first_on_its_own_case(code: str, kit: SimpleNamespace) -> None:
    found = codes(OWN[code](kit))
    assert found[:1] == [code], found


@pytest.mark.parametrize("code", sorted(DIAGNOSERS))
def test_the_cause_is_silent_on_a_near_miss(code: str, kit: SimpleNamespace) -> None:
    assert code not in codes(NEAR[code](kit))


@pytest.mark.parametrize("code", sorted(DIAGNOSERS))
def test_no_byte_is_blamed_twice(code: str, kit: SimpleNamespace) -> None:
    diagnosis = findings(OWN[code](kit))
    profile = diagnosis.profile.devices[0]
    in_live_blocks = sum(f.bytes for f in diagnosis.findings if f.code not in {"OOM005", "OOM012", "OOM013"})
    assert in_live_blocks <= profile.live_bytes
    assert sum(c.bytes for c in profile.categories.values()) == sum(b.requested_bytes for b in profile.live)


def test_a_certain_cause_is_an_error_and_a_fitting_job_is_not(kit: SimpleNamespace) -> None:
    assert findings(OWN["OOM006"](kit)).findings[0].severity is Severity.ERROR
    assert findings(OWN["OOM015"](kit)).findings[0].severity is Severity.WARNING
    assert findings(OWN["OOM024"](kit)).findings[0].severity is Severity.NOTE


def test_allocator_settings_are_not_advised_where_they_are_on(kit: SimpleNamespace) -> None:
    config = AllocatorConfig(expandable_segments=True)
    job = kit.Job(capacity=400 * UNIT, config=config)
    keep = [job.alloc(30 * UNIT, kit.script(60)) for _ in range(12)]
    job.free(keep[::2], kit.script(61))
    with contextlib.suppress(OutOfMemory):
        job.alloc(200 * UNIT, kit.script(50))
    found = [f for f in findings(job.snapshot()).findings if f.code == "OOM005"]
    assert all("allocator-settings" not in f.remedies for f in found)


def _holes(kit: Kit, request: int) -> Snapshot:
    """A tenth of what is reserved is holes, with which the request that fails would have fitted."""
    job = kit.Job(capacity=400 * UNIT)
    job.alloc(300 * UNIT, kit.MOVE)
    big = job.alloc(80 * UNIT, kit.script(50))
    job.free(big, kit.script(51))
    small = [job.alloc(4 * UNIT, kit.script(52)) for _ in range(20)]
    job.free(small[::2], kit.script(53))
    with contextlib.suppress(OutOfMemory):
        job.alloc(request, kit.script(50))
    return job.snapshot()


@pytest.mark.parametrize(
    ("peaks", "phase", "severity"),
    [
        ((350, 380), "backward", Severity.ERROR),  # a whole step of this job has room
        ((350, 380), "forward", Severity.ERROR),
        ((350, 450), "backward", Severity.WARNING),  # it has not
        ((320, 330), "forward", Severity.WARNING),  # larger than any step before: who knows how far it goes
        ((320, 330), "backward", Severity.ERROR),  # the same, but past its forward
        ((380,), "backward", Severity.WARNING),  # one step, without its optimizer state, says little
    ],
)
def test_holes_are_to_blame_where_the_whole_step_would_have_fitted(
    kit: SimpleNamespace, peaks: tuple[int, ...], phase: str, severity: Severity
) -> None:
    profile = build([_holes(kit, 30 * UNIT)]).devices[0]
    assert profile.oom is not None
    last = profile.oom.event - len(peaks)
    steps = tuple(
        StepBytes(step=n + 1, event=last + n, live_bytes=300 * UNIT, peak_bytes=peak * UNIT)
        for n, peak in enumerate(peaks)
    )
    profile = replace(profile, steps=steps, oom=replace(profile.oom, phase=phase))
    limits = {**thresholds(), "OOM005": {**thresholds()["OOM005"], "new_demand": 0.0}}  # the older rule set aside
    found = {f.code: f for f in diagnose(MemoryProfile(devices=(profile,)), limits).findings}
    assert found["OOM005"].severity is severity


def _cause(code: str, severity: Severity, size: int, **kind: bool) -> SimpleNamespace:
    claimed = Claim(
        severity=severity,
        title=code,
        bytes=size,
        share=0.1,
        confidence=Confidence.EXACT,
        evidence=(),
        blocks=frozenset(),
    )
    return SimpleNamespace(CODE=code, NAME=code, REMEDIES=(), diagnose=lambda case, limits: claimed, **kind)


def test_where_nothing_failed_causes_go_by_severity_and_bytes(kit: SimpleNamespace, healthy: Snapshot) -> None:
    """What explains a failure on its own comes first only where it is more than a note."""
    note, warning = Severity.NOTE, Severity.WARNING
    causes = [
        _cause("specific", note, 60),
        _cause("decisive", note, 20, DECISIVE=True),
        _cause("free", note, 40, FREE=True),
        _cause("general", note, 100, GENERAL=True),
        _cause("warned", warning, 50),
        _cause("free-warned", warning, 10, FREE=True),
    ]

    def order(snapshot: Snapshot) -> list[str]:
        return [f.code for f in diagnose(build([snapshot]), {}, {each.CODE: each for each in causes}).findings]

    assert order(healthy) == ["free-warned", "warned", "general", "specific", "free", "decisive"]
    failed = order(OWN["OOM004"](kit))
    assert failed.index("specific") < failed.index("general")
