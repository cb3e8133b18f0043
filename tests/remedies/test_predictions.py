"""Predicted from the plain recording against what the virtual GPU gives when the remedy is really applied."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from oomdoc.diagnosers.interface import DeviceProfile
from oomdoc.remedies.estimating import case_of
from oomdoc.remedies.evaluating import MARGINS
from oomdoc.remedies.interface import Job, Setting
from oomdoc.remedies.planner import estimate
from predicted import bare

LM = ("train_lm.py", ("--device", "cuda", "--width", "512", "--depth", "6", "--batch-size", "64", "--dropout", "0.1"))
ENCODER = ("train_encoder.py", ())
LLAMA = ("train_llama.py", ())
GIB = 1 << 30
Record = Callable[..., DeviceProfile]


def _setting(name: str, **options: Any) -> Setting:
    return Setting(name=name, options=options)


def _remedies(block: str) -> list[tuple[Setting, int]]:
    return [
        (_setting("mixed-precision", dtype="bfloat16"), 1),
        (_setting("activation-checkpointing", modules=[block], every=1), 1),
        (_setting("gradient-accumulation", micro_batches=4), 1),
        (_setting("fsdp", wrap=[block], reshard_after_forward=True), 4),
        (_setting("cpu-offload", what=["optimizer_state"]), 1),
        (_setting("cpu-offload", what=["activations"]), 1),
    ]


def _name(value: object) -> str | None:
    return getattr(value, "name", None)


def _job(ranks: int = 1) -> Job:
    return Job(gpu="a100-80gb", capacity_bytes=None, world_size=ranks)


def _check(record: Record, job: tuple[str, tuple[str, ...]], setting: Setting, ranks: int) -> None:
    plain = record(*job)
    found = estimate(setting.name, plain, _job(ranks))
    assert not hasattr(found, "reason"), found
    predicted = next(e for e in found if e.settings[0].options == setting.options)
    seen = record(*job, (setting,), ranks)
    allocated = case_of(seen, _job(ranks)).timeline.replay().peak_allocated_bytes
    band = predicted.predicted_peak_bytes
    text = f"{setting.name}: predicted {band.expected / GIB:.3f} GiB, verified {allocated / GIB:.3f} GiB"
    assert band.low <= allocated <= band.high, text
    assert allocated < plain.peak.requested_bytes, text
    for readable in (True, False):  # PyTorch's own recording of it, here and on a machine without the sources
        _check_bare(setting, bare(plain, readable=readable), ranks, found.index(predicted), allocated)


def _check_bare(setting: Setting, profile: DeviceProfile, ranks: int, index: int, allocated: int) -> None:
    found = estimate(setting.name, profile, replace(_job(ranks), batch_size=8))
    assert not hasattr(found, "reason"), found
    band = found[index].predicted_peak_bytes
    text = f"bare {setting.name}: predicted {band.expected / GIB:.3f} GiB, verified {allocated / GIB:.3f} GiB"
    assert band.low <= allocated <= band.high, text
    assert abs(band.expected - allocated) <= 0.15 * allocated, text


QUICK = ("activation-checkpointing", "gradient-accumulation")


@pytest.mark.parametrize(
    ("setting", "ranks"),
    [
        pytest.param(*each, marks=() if each[0].name in QUICK else pytest.mark.slow, id=f"{_name(each[0])}-{each[1]}")
        for each in _remedies("Block")
    ],
)
def test_the_prediction_holds_for_a_language_model(record: Record, setting: Setting, ranks: int) -> None:
    _check(record, LM, setting, ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "ranks"), _remedies("TransformerEncoderLayer"), ids=_name)
def test_the_prediction_holds_for_torchs_encoder(record: Record, setting: Setting, ranks: int) -> None:
    _check(record, ENCODER, setting, ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "ranks"), _remedies("LlamaDecoderLayer"), ids=_name)
def test_the_prediction_holds_for_a_hugging_face_model(record: Record, setting: Setting, ranks: int) -> None:
    pytest.importorskip("transformers")
    _check(record, LLAMA, setting, ranks)


def test_the_timeline_of_an_unchanged_job_replays_to_its_own_peak(record: Record) -> None:
    plain = record(*LM)
    timeline = case_of(plain, _job()).timeline
    run = timeline.replay()
    assert timeline.peak().bytes == plain.peak.requested_bytes
    assert plain.peak.allocated_bytes in (run.peak_allocated_bytes, None)  # None: the layout leaves it open
    assert run.peak_reserved_bytes == plain.peak.reserved_bytes


def test_the_facts_a_person_can_check_by_hand(record: Record) -> None:
    facts = case_of(record(*LM), _job()).facts
    width, vocab, depth = 512, 128, 6
    block = 12 * width * width + 13 * width
    count = depth * block + 2 * vocab * width + vocab
    assert facts.parameter_count == count
    assert facts.parameter_bytes == 4 * count
    assert facts.optimizers[0].state_bytes == 8 * count
    assert facts.block_classes == ("Block",)
    assert facts.loader_batch_size == 64
    assert facts.bytes_below("blocks.3") == 4 * block


def test_every_margin_belongs_to_a_remedy() -> None:
    from oomdoc.remedies.all_remedies import REMEDIES

    assert {name.partition("/")[0] for name in MARGINS} <= set(REMEDIES)
