"""An out-of-memory error that the script caught and went on from is no failure of the job."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from oomdoc.allocator.machine import OutOfMemory
from oomdoc.diagnosers.interface import DeviceProfile
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots.model import Snapshot
from oomdoc.snapshots.timeline import extent

TOO_MUCH = 1 << 41


def profile_of(snapshot: Snapshot) -> DeviceProfile:
    (device,) = build([snapshot]).devices
    return device


def fail(job: SimpleNamespace, kit: SimpleNamespace) -> None:
    """A batch that is too large, and what a handler gives back."""
    held = job.alloc(40 * kit.UNIT * 100, kit.model(11))
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            job.alloc(TOO_MUCH, kit.model(12))
    job.free(held, kit.script(50))
    job.zero_grad()


def started(kit: SimpleNamespace, **options: object) -> SimpleNamespace:
    job: SimpleNamespace = kit.Training(capacity=1 << 40, **options)
    job.build()
    job.step(0)
    return job


def test_a_job_that_went_on_did_not_fail(kit: SimpleNamespace) -> None:
    """Two errors, then two whole steps: the peak of those is told apart from that of the attempt."""
    job = started(kit)
    fail(job, kit)
    job.step(1)
    job.step(2)
    device = profile_of(job.snapshot())
    assert device.oom is None
    assert device.caught is not None
    assert device.caught.count == 2
    calm = started(kit)
    calm.step(1)
    assert device.caught.peak_after_bytes == extent(calm.snapshot().devices[0]).peak
    assert device.caught.peak_after_bytes < device.peak.requested_bytes


def test_a_handler_that_only_frees_is_the_end(kit: SimpleNamespace) -> None:
    """Frees and a gradient reset follow the error, no step does."""
    job = started(kit)
    fail(job, kit)
    device = profile_of(job.snapshot())
    assert device.caught is None
    assert device.oom is not None
    assert device.oom.requested_bytes == TOO_MUCH


@pytest.mark.parametrize("failed", [True, False])
def test_a_recording_knows_how_the_script_ended(kit: SimpleNamespace, failed: bool) -> None:
    """Whatever came after the error: a last step by a `finally`, or nothing at all in a script that needed no more."""
    job = started(kit, outside=0)
    fail(job, kit)
    if failed:
        job.step(1)
    snapshot = job.snapshot()
    assert snapshot.recording is not None
    told = replace(snapshot, recording=replace(snapshot.recording, facts={"out_of_memory": failed}))
    assert (profile_of(told).oom is not None) == failed
    assert (profile_of(told).caught is None) == failed
