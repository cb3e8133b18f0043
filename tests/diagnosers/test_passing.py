"""What a forward makes in passing, where the recording is cut in the middle of one."""

from typing import Any

from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.profile import build

UNIT = 32 << 20


def first_forward(kit: Any, results: int) -> Any:
    """Layers whose kernel takes scratch before its result; memory is out before the forward is over."""
    job = kit.Training(capacity=6 * (8 * UNIT + 8192) + (results + 1) * 3 * UNIT)
    job.build()
    try:
        while True:
            job.free(job.alloc(UNIT, kit.model(11)), kit.model(11))
            job.alloc(3 * UNIT, kit.model(11))
    except kit.OutOfMemory:
        return job.snapshot()


def test_what_kernels_work_with_says_nothing_of_their_results(kit: Any) -> None:
    diagnosis = diagnose(build([first_forward(kit, results=30)]))
    (device,) = diagnosis.profile.devices
    assert len([block for block in device.live if block.birth_phase == "forward"]) >= 30
    assert not any(block.passing for block in device.live)
    assert diagnosis.findings[0].code == "OOM004"
