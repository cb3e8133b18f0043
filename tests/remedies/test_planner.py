"""What the planner offers, in which order, and what it asks to be run."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from oomdoc.diagnosers.interface import DeviceProfile, MemoryProfile
from oomdoc.errors import OomdocError
from oomdoc.remedies.all_remedies import REMEDIES
from oomdoc.remedies.config_file import OPTIONS
from oomdoc.remedies.estimating import case_of
from oomdoc.remedies.evaluating import UNTRIED
from oomdoc.remedies.interface import Candidate, Constraints, Job, NotApplicable, Numerics, Setting, Verified
from oomdoc.remedies.planner import cost, estimate, plan

LM = ("train_lm.py", ("--device", "cuda", "--width", "512", "--depth", "6", "--batch-size", "64", "--dropout", "0.1"))
MIB = 1 << 20


@pytest.fixture
def plain(record: Callable[..., DeviceProfile]) -> DeviceProfile:
    return record(*LM)


def _job(capacity_mib: int | None = 520, ranks: int = 1) -> Job:
    capacity = None if capacity_mib is None else capacity_mib * MIB
    return Job(gpu="a100-80gb", capacity_bytes=capacity, world_size=ranks, batch_size=64)


def test_what_fits_comes_first_then_what_keeps_the_training_then_the_cheapest(plain: DeviceProfile) -> None:
    candidates = plan(plain, _job()).candidates
    assert candidates[0].fits
    places = [{True: 0, None: 1, False: 2}[each.fits] for each in candidates]
    assert places == sorted(places)
    fitting = [each.estimate for each in candidates if each.fits]
    changed = [each.numerics is Numerics.CHANGED for each in fitting]
    assert changed == sorted(changed)
    costs = [round(cost(each), 3) for each in fitting if each.numerics is not Numerics.CHANGED]
    assert len(costs) >= 2
    assert costs == sorted(costs)


def test_a_float32_job_is_told_of_autocast_first_unless_it_has_to_keep_its_numbers(plain: DeviceProfile) -> None:
    assert {s.name for s in plan(plain, _job()).candidates[0].estimate.settings} >= {"mixed-precision"}
    kept = plan(plain, _job(), limits=Constraints(keep_numerics=True)).candidates[0].estimate
    assert kept.numerics is Numerics.IDENTICAL


def test_a_slip_of_the_script_comes_before_what_is_faster(record: Callable[..., DeviceProfile]) -> None:
    """The graphs that a list of losses keeps: autocast would make the job fit sooner, and only for longer."""
    leaking = record("train_by_hand.py", ("--batch-size", "8", "--length", "128", "--keep-loss"))
    job = Job(gpu="a100-80gb", capacity_bytes=1 << 40, world_size=1, batch_size=8)
    names = [each.name for each in plan(leaking, job).candidates]
    assert names[0] == "detach-retained-graph"
    assert "mixed-precision" in names


def test_a_batch_that_nothing_tells_is_offered_in_parts(record: Callable[..., DeviceProfile]) -> None:
    by_hand = record("train_by_hand.py", ("--batch-size", "8", "--length", "128"))
    job = Job(gpu="a100-80gb", capacity_bytes=1 << 40, world_size=1)
    made = plan(by_hand, job, limits=Constraints(only=("smaller-batch",)))
    half, quarter, _ = sorted(made.candidates, key=lambda each: -each.estimate.predicted_peak_bytes.expected)
    assert half.estimate.settings == (Setting(name="smaller-batch", options={"divided_by": 2}),)
    assert half.estimate.predicted_peak_bytes.expected > quarter.estimate.predicted_peak_bytes.expected
    assert "the recording does not say how many samples a batch has" in half.estimate.why
    assert half.estimate.by_hand


def test_every_estimate_is_a_band_with_a_reason_and_saves_something(plain: DeviceProfile) -> None:
    made = plan(plain, _job(None, ranks=2))
    assert {"mixed-precision", "activation-checkpointing", "gradient-accumulation", "fsdp", "cpu-offload"} <= {
        setting.name for each in made.candidates for setting in each.estimate.settings
    }
    for each in made.candidates:
        band, time = each.estimate.predicted_peak_bytes, each.estimate.step_time_factor
        assert 0 < band.low <= band.expected <= band.high
        assert 0 < time.low <= time.expected <= time.high
        assert each.estimate.why
        assert each.fits is None  # no capacity is known
    named = {each.name for each in made.not_applicable}
    assert "detach-retained-graph" in named
    assert all(each.reason for each in made.not_applicable)


def test_combinations_come_where_no_single_change_fits(plain: DeviceProfile) -> None:
    candidates = plan(plain, _job(250), limits=Constraints(without=("smaller-batch",))).candidates
    fitting = [each for each in candidates if each.fits]
    assert fitting
    tight = [each for each in candidates if len(each.estimate.settings) > 1]
    assert tight
    for each in tight:
        names = {setting.name for setting in each.estimate.settings}
        subsets = [c for c in fitting if {s.name for s in c.estimate.settings} < names]
        cheaper = min((c.estimate.step_time_factor.expected for c in subsets), default=99.0)
        assert each.estimate.step_time_factor.expected <= cheaper + 1e-9


def test_only_and_without_and_limits_are_kept(plain: DeviceProfile) -> None:
    only = plan(plain, _job(), limits=Constraints(only=("mixed-precision", "cpu-offload"))).candidates
    assert {s.name for each in only for s in each.estimate.settings} == {"mixed-precision", "cpu-offload"}
    kept = plan(plain, _job(), limits=Constraints(keep_numerics=True)).candidates
    assert {each.estimate.numerics for each in kept} == {Numerics.IDENTICAL}
    fast = plan(plain, _job(), limits=Constraints(max_slowdown=1.12)).candidates
    assert all(each.estimate.step_time_factor.expected <= 1.12 for each in fast)


def test_only_what_may_fit_and_can_be_applied_is_run_again(plain: DeviceProfile) -> None:
    asked: list[tuple[Setting, ...]] = []

    def verify(settings: tuple[Setting, ...]) -> Verified:
        asked.append(settings)
        return Verified(on="virtual", peak_bytes=400 * MIB, reserved_bytes=410 * MIB, fits=len(asked) > 1)

    made = plan(plain, _job(), verify, verify_at_most=3, verify_seconds=0)
    assert 1 <= len(asked) <= 3
    assert all(setting.name in OPTIONS for settings in asked for setting in settings)
    by_settings: dict[str, Candidate] = {repr(each.estimate.settings): each for each in made.candidates}
    assert all(by_settings[repr(settings)].fits is not False for settings in asked)
    assert made.candidates[0].verified is not None
    assert made.candidates[0].verified.fits
    refuted = by_settings[repr(asked[0])]
    assert refuted.verified is not None
    assert not refuted.verified.fits
    assert made.candidates.index(refuted) > sum(bool(each.fits) for each in made.candidates if each is not refuted)


def test_while_there_is_time_everything_that_can_be_applied_is_run(plain: DeviceProfile) -> None:
    asked: list[tuple[Setting, ...]] = []

    def verify(settings: tuple[Setting, ...]) -> Verified:
        asked.append(settings)
        return Verified(on="virtual", peak_bytes=400 * MIB, reserved_bytes=410 * MIB, fits=True)

    made = plan(plain, _job(), verify)
    able = [each for each in made.candidates if all(s.name in OPTIONS for s in each.estimate.settings)]
    assert len(asked) > 4
    assert all(each.verified is not None for each in able if each.fits is not False)


def test_a_run_that_could_not_be_judged_leaves_the_prediction(plain: DeviceProfile) -> None:
    def verify(settings: tuple[Setting, ...]) -> Verified:
        return Verified(on="virtual", peak_bytes=0, reserved_bytes=0, fits=False, error="the script ended")

    made = plan(plain, _job(), verify, verify_at_most=1, verify_seconds=0)
    seen = next(each for each in made.candidates if each.verified is not None)
    assert seen.fits
    assert made.candidates.index(seen) < len(made.candidates) // 2


def test_after_an_out_of_memory_the_recording_alone_promises_nothing(
    record: Callable[..., DeviceProfile], plain: DeviceProfile
) -> None:
    job = replace(_job(), capacity_bytes=500 * MIB)
    cut = record(*LM, (), 1, 1000 * MIB)
    assert cut.oom is not None
    alone = plan(cut, job)
    assert not any(each.fits for each in alone.candidates)
    assert all("ends at the failure" in each.estimate.why for each in alone.candidates)
    whole = plan(cut, job, whole=MemoryProfile(devices=(plain,)))
    assert any(each.fits for each in whole.candidates)
    assert not any("ends at the failure" in each.estimate.why for each in whole.candidates)


@pytest.mark.parametrize("script", [LM, ("train_encoder.py", ())])
def test_no_remedy_makes_an_impossible_timeline(
    record: Callable[..., DeviceProfile], script: tuple[str, tuple[str, ...]]
) -> None:
    case = case_of(record(*script), _job(ranks=4))
    assert case.timeline.self_check() == ()
    tried = 0
    for name, remedy in REMEDIES.items():
        found = remedy.settings(case)
        for setting in () if isinstance(found, NotApplicable) else found:
            change = remedy.change(case, setting.options)
            assert not isinstance(change, NotApplicable), name
            for timeline in (change.low, change.expected, change.high):
                assert timeline is None or timeline.self_check() == (), (name, dict(setting.options))
            tried += 1
    assert tried >= 10


@pytest.mark.parametrize("name", list(REMEDIES))
def test_every_remedy_has_a_page_with_the_same_headings(name: str) -> None:
    module = REMEDIES[name]
    page = module.__doc__ or ""
    assert name == module.NAME
    for heading in ("Applies when:", "Saves:", "Costs:", "Numerics:", "Conflicts:", "Frameworks:"):
        assert f"\n{heading}" in page, f"{name} has no {heading}"
    assert page.splitlines()[0].endswith((".", ":", "memory"))


def test_a_remedy_that_cannot_be_judged_gives_the_true_reason(record: Callable[..., DeviceProfile]) -> None:
    """A cut recording of one forward says that a backward may have been to come, not that it came."""
    remedy = REMEDIES["no-grad-evaluation"]
    first = record("serve.py", ("1",), (), 1, 700 * MIB)  # runs out of memory in its first forward
    assert first.oom is not None
    training = record("train_encoder.py")
    reasons = {}
    for name, profile in (("first", first), ("training", training)):
        found = remedy.settings(case_of(profile, _job()))
        assert isinstance(found, NotApplicable)
        reasons[name] = found.reason
    assert "may have been still to come" in reasons["first"]
    assert reasons["training"] == "every forward of the trace is followed by a backward"


@pytest.mark.parametrize("keep", ["", "keep"])
@pytest.mark.slow
def test_inference_that_forgets_no_grad_is_predicted_without_its_graphs(
    record: Callable[..., DeviceProfile], keep: str
) -> None:
    """Against a run under no_grad, with the outputs dropped and with all of them kept."""
    graphs, truth = (record("serve.py", ("12", *([keep] if keep else []), *more)) for more in ((), ("no_grad",)))
    found = estimate("no-grad-evaluation", graphs, _job())
    assert not isinstance(found, NotApplicable)
    band = found[0].predicted_peak_bytes
    peak = truth.peak.allocated_bytes
    assert peak is not None
    assert band.low <= peak <= band.high
    assert abs(band.expected - peak) <= 0.1 * peak
    assert peak < 0.7 * (graphs.peak.allocated_bytes or 0)


def test_inference_that_runs_out_of_memory_gets_no_grad_first(record: Callable[..., DeviceProfile]) -> None:
    """Outputs appended without no_grad: what would be live without the graphs, from the cut recording and the whole."""
    arguments = ("12", "keep")
    cut = record("serve.py", arguments, (), 1, 1100 * MIB)
    assert cut.oom is not None
    job = replace(_job(), capacity_bytes=598 * MIB)
    assert plan(cut, job).candidates[0].name == "no-grad-evaluation"
    whole = plan(cut, job, whole=MemoryProfile(devices=(record("serve.py", arguments),)))
    assert whole.candidates[0].name == "no-grad-evaluation"
    assert whole.candidates[0].fits


@pytest.mark.slow
def test_an_evaluation_beside_training_that_runs_out_of_memory_gets_no_grad(
    record: Callable[..., DeviceProfile],
) -> None:
    """The model is in eval mode when it fails, so its forward waits for no backward; against a run with the remedy."""
    cut = record("train_and_evaluate.py", (), (), 1, 800 * MIB)
    assert cut.oom is not None
    job = replace(_job(), capacity_bytes=300 * MIB)
    first = plan(cut, job, whole=MemoryProfile(devices=(record("train_and_evaluate.py"),))).candidates[0]
    assert first.name == "no-grad-evaluation"
    truth = record("train_and_evaluate.py", (), (Setting(name="no-grad-evaluation"),)).peak.allocated_bytes
    assert truth is not None
    band = first.estimate.predicted_peak_bytes
    assert abs(band.expected - truth) <= 0.05 * truth
    assert truth < 0.6 * (record("train_and_evaluate.py").peak.allocated_bytes or 0)


def test_parameters_that_fsdp_gathers_in_half_are_not_cast_again(plain: DeviceProfile) -> None:
    case = case_of(plain, _job())
    remedy = REMEDIES["mixed-precision"]
    assert not isinstance(remedy.settings(case), NotApplicable)
    refused = remedy.settings(replace(case, facts=replace(case.facts, gathered_dtype="bfloat16")))
    assert isinstance(refused, NotApplicable)
    assert "gathers the parameters in bfloat16" in refused.reason


def test_a_recording_tells_whether_blocks_run_again_in_backward(record: Callable[..., DeviceProfile]) -> None:
    checkpointed = Setting(name="activation-checkpointing", options={"every": 1})
    for settings, recomputes in (((), False), ((checkpointed,), True)):
        recording = record(*LM, settings).snapshot.recording
        assert recording is not None
        assert recording.facts["recomputes"] is recomputes


def test_headroom_is_left_free_and_limits_that_cannot_be_say_so(plain: DeviceProfile) -> None:
    singles = Constraints(only=("activation-checkpointing", "gradient-accumulation", "cpu-offload"))
    whole = plan(plain, _job(), limits=singles).candidates
    tight = plan(plain, _job(), limits=replace(singles, headroom="15%")).candidates
    alone = [sum(bool(e.fits) and len(e.estimate.settings) == 1 for e in found) for found in (whole, tight)]
    assert 0 < alone[1] < alone[0]
    for limits, words in (
        (Constraints(headroom="lots"), "not a size"),
        (Constraints(headroom="x%"), "a share below 100%"),
        (Constraints(headroom="1TiB"), "leaves nothing"),
        (Constraints(only=("activation-checkpoint",)), "did you mean activation-checkpointing"),
        (Constraints(topology="4x8:h100-80gb:nvlink:tin-cans"), "no network called tin-cans"),
    ):
        with pytest.raises(OomdocError, match=words):
            plan(plain, _job(), limits=limits)


def test_the_front_holds_what_nothing_else_beats(plain: DeviceProfile) -> None:
    candidates = plan(plain, _job()).candidates
    costs = [
        (e.estimate.predicted_peak_bytes.expected, e.estimate.step_time_factor.expected, e.estimate.numerics)
        for e in candidates
    ]
    order = list(Numerics)
    for each, mine in zip(candidates, costs, strict=True):
        beaten = any(
            o[0] <= mine[0] and o[1] <= mine[1] + 5e-4 and order.index(o[2]) <= order.index(mine[2]) and o != mine
            for o in costs
        )
        assert each.pareto or beaten, each.name
    assert 2 <= sum(each.pareto for each in candidates) < len(candidates)


def test_bands_say_why_they_are_wide(plain: DeviceProfile) -> None:
    for each in plan(plain, _job(ranks=2)).candidates:
        tried = not {setting.name for setting in each.estimate.settings} & UNTRIED
        assert ("within" if tried else "assumed") in each.estimate.spread
    checkpointing = estimate("activation-checkpointing", plain, _job())
    assert not isinstance(checkpointing, NotApplicable)
    assert "1.18 to 1.40" in checkpointing[0].spread


def test_where_nothing_fits_it_says_what_would(plain: DeviceProfile) -> None:
    made = plan(plain, _job(150), limits=Constraints(without=("lora", "qlora")))
    assert not any(each.fits for each in made.candidates)
    text = "; ".join(made.way_out)
    assert "comes closest" in text
    assert "would hold it" in text
    assert "GPUs like this one" in text
    assert plan(plain, _job()).way_out == ()


def test_a_topology_explains_where_the_time_goes(plain: DeviceProfile) -> None:
    """Each collective with its algorithm, what bounds it, and its size against half of the bandwidth."""
    made = plan(plain, _job(None), limits=Constraints(topology="4x8:h100-80gb:nvlink:ib200"))
    found = made.communication
    assert found is not None
    assert set(found.seconds) == {"ddp", "fsdp", "hsdp"}
    by = {(each.strategy, each.collective): each for each in found.exchanges}
    assert by["fsdp", "all_gather"].bound == "inter"
    assert by["hsdp", "all_gather"].bound == "intra"
    assert by["hsdp", "all_gather"].seconds < by["fsdp", "all_gather"].seconds
    assert all("half of the bandwidth" in each.why and each.algorithm in each.why for each in found.exchanges)
    assert "replicate across nodes" in found.advice
    names = {setting.name for each in made.candidates for setting in each.estimate.settings}
    assert {"fsdp", "hsdp"} <= names
    assert plan(plain, _job()).communication is None


def test_one_node_has_nothing_to_replicate_across(plain: DeviceProfile) -> None:
    made = plan(plain, _job(None, ranks=8))
    assert made.communication is not None
    assert set(made.communication.seconds) == {"ddp", "fsdp"}
    assert any(each.name == "hsdp" for each in made.not_applicable)
