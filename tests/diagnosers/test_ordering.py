"""Which finding comes first, and how severe it is."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from oomdoc.allocator.config import AllocatorConfig
from oomdoc.allocator.machine import OutOfMemory
from oomdoc.configs.loader import thresholds
from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.interface import Claim, Confidence, Diagnosis, MemoryProfile, Severity, StepBytes
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots.model import Snapshot

from . import made_up_more, made_up_training  # noqa: F401  (they register their jobs)
from .made_up import OWN, UNIT, Kit


def findings(snapshot: Snapshot) -> Diagnosis:
    return diagnose(build([snapshot]))


def test_a_certain_cause_is_an_error_and_a_fitting_job_is_not(kit: SimpleNamespace) -> None:
    assert findings(OWN["OOM006"](kit)).findings[0].severity is Severity.ERROR
    assert findings(OWN["OOM015"](kit)).findings[0].severity is Severity.WARNING
    assert findings(OWN["OOM024"](kit)).findings[0].severity is Severity.NOTE


def test_allocator_settings_are_not_advised_where_they_are_on(kit: SimpleNamespace) -> None:
    advised = []
    for config in (AllocatorConfig(), AllocatorConfig(expandable_segments=True)):
        found = findings(_holes(kit, 30 * UNIT, config)).findings
        advised.append(any("allocator-settings" in each.remedies for each in found))
    assert advised == [True, False]


def _holes(kit: Kit, request: int, config: AllocatorConfig | None = None) -> Snapshot:
    """A tenth of what is reserved is holes, with which the request that fails would have fitted."""
    job = kit.Job(capacity=400 * UNIT, config=config)
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
