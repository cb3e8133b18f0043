"""The peak explained: the numbers of an expert's answer, from recordings with and without their key."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.explanation import Explanation, explain
from oomdoc.diagnosers.interface import Category
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots.model import Snapshot

UNIT = 32 << 20


def explained(*snapshots: Snapshot) -> Explanation:
    found = explain(diagnose(build(snapshots)))
    assert found is not None
    return found


def test_it_names_the_request_the_moment_and_the_three_largest(kit: SimpleNamespace) -> None:
    snapshot = kit.Training(capacity=400 * UNIT, activation=24 * UNIT).run().snapshot()
    found = explained(snapshot)
    (device,) = build([snapshot]).devices
    assert device.oom is not None
    assert "768.0 MiB more did not fit" in found.what
    assert found.when == "When memory ran out in forward."  # no step was seen, so none is counted
    assert [held.category for held in found.largest] == list(device.categories)[:3]
    assert [held.bytes for held in found.largest] == [c.bytes for c in list(device.categories.values())[:3]]
    first = found.largest[0]
    assert first.category is Category.ACTIVATION
    assert first.location is not None
    assert first.location.file == "/job/model.py"


def test_of_several_ranks_the_one_that_failed_is_explained(kit: SimpleNamespace) -> None:
    fits = kit.Training(activation=40 * UNIT).run(2).snapshot()
    fails = kit.Training(capacity=100 * UNIT).run(2).snapshot()
    assert explained(fits, fails).rank == 1


def test_what_is_wrong_is_told_apart_from_what_is_large(kit: SimpleNamespace) -> None:
    leaking = explained(kit.Training(capacity=700 * UNIT, keep_loss=True).run(steps=20).snapshot())
    assert any("of its graph behind" in line for line in leaking.unusual)
    large = explained(kit.Training(capacity=400 * UNIT, activation=24 * UNIT).run().snapshot())
    assert not any("Activations hold" in line for line in large.unusual)


def test_nothing_recorded_is_nothing_explained(kit: SimpleNamespace) -> None:
    assert explain(diagnose(build([kit.Job().snapshot()]))) is None


def test_bytes_per_parameter_and_what_the_optimizer_makes_of_them() -> None:
    pytest.importorskip("torch")
    from .recorded import record

    snapshot = record("healthy_gpt", 40_000)
    told = " ".join(explained(snapshot).normal)
    assert "4.0 parameter" in told
    assert "8.0 optimizer state" in told
    assert "AdamW in this precision comes to 4 + 4 + 8 = 16" in told
    bare = " ".join(explained(replace(snapshot, recording=None)).normal)
    assert "2 bytes of optimizer state per byte of weights" in bare
