"""What holds of every cause: silent on nothing and on health, first on its own case, silent on a near miss."""

from types import SimpleNamespace

import pytest
from oomdoc.configs.loader import thresholds
from oomdoc.diagnosers.all_causes import DIAGNOSERS
from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.interface import Diagnosis, Severity
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots.check import self_check
from oomdoc.snapshots.model import Snapshot

from . import made_up_more, made_up_training  # noqa: F401  (they register their jobs)
from .made_up import NEAR, OWN, Made

# bytes of these are no live blocks: cached, of a request, outside, of a pool, a difference between ranks
NO_LIVE_BLOCKS = {"OOM005", "OOM012", "OOM013", "OOM026", "OOM028"}


def findings(made: Made) -> Diagnosis:
    snapshots = made if isinstance(made, tuple) else (made,)
    assert all(self_check(snapshot) == () for snapshot in snapshots)
    return diagnose(build(snapshots))


def codes(made: Made) -> list[str]:
    return [finding.code for finding in findings(made).findings]


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
    for profile in diagnosis.profile.devices:
        mine = [f for f in diagnosis.findings if (f.rank, f.device) == (profile.rank, profile.device)]
        assert sum(f.bytes for f in mine if f.code not in NO_LIVE_BLOCKS) <= profile.live_bytes
        assert sum(c.bytes for c in profile.categories.values()) == sum(b.requested_bytes for b in profile.live)
