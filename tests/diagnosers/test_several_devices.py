"""One process that uses several cards, as nn.DataParallel and a model spread by a device_map do."""

from dataclasses import replace
from typing import Any

from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.interface import Diagnosis
from oomdoc.diagnosers.profile import build

UNIT = 32 << 20


def two_devices(kit: Any, ends: bool, factor: int, first_factor: int = 1) -> Diagnosis:
    """A forward on each; the activations of both are so many units, and device 1 may run out in its own."""
    first = kit.Training(activation=first_factor * UNIT)
    capacity = first.layers * (2 * first.weight + 8192) + 13 * factor * UNIT if ends else 1 << 40
    second = kit.Training(activation=factor * UNIT, capacity=capacity)
    second.stacks = first.stacks
    for job in (first, second):
        job.build()
        try:
            job.forward()
        except kit.OutOfMemory:
            assert job is second
            assert ends
    one, other = first.snapshot(), second.snapshot()
    return diagnose(build([replace(one, devices=(*one.devices, replace(other.devices[0], device=1)))]))


def test_the_card_that_ran_out_is_set_beside_the_others(kit: Any) -> None:
    found = next(each for each in two_devices(kit, ends=True, factor=40).findings if each.code == "OOM028")
    assert found.title.startswith("Device 1 needs ")
    assert "activation" in found.title
    assert found.device == 1
    assert [row.partition(":")[0] for row in found.evidence] == ["device 1", "device 0"]


def test_cards_with_room_may_be_unlike(kit: Any) -> None:
    assert "OOM028" not in [each.code for each in two_devices(kit, ends=False, factor=40).findings]


def test_no_backward_can_follow_where_another_card_ran_out(kit: Any) -> None:
    failed = two_devices(kit, ends=True, factor=6, first_factor=4)
    assert "OOM011" not in [each.code for each in failed.findings]
    through = two_devices(kit, ends=False, factor=6, first_factor=4)
    assert sorted(each.device for each in through.findings if each.code == "OOM011") == [0, 1]
