"""Five remedies on fourteen models: the peak predicted from a bare recording against that of a run with the change."""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "remedies"))
from conftest import recorded
from predicted import JOBS, Pair, pairs

pytestmark = pytest.mark.slow
MIB = 1 << 20


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def test_the_table_of_predictions(tmp_path_factory: pytest.TempPathFactory) -> None:
    record = recorded(tmp_path_factory)
    of_remedy: dict[str, list[Pair]] = defaultdict(list)
    say(f"\n{'MiB':58}{'verified':>9}{'bare':>8}{'no source':>10}{'recorded':>9}")
    for job in JOBS:
        for pair in pairs(record, job):
            of_remedy[pair.setting.name].append(pair)
            options = " ".join(f"{k}={v}" for k, v in pair.setting.options.items() if k not in ("modules", "wrap"))
            say(
                f"{job + ': ' + pair.setting.name + ' ' + options:58.58}{pair.verified / MIB:9.1f}"
                f"{pair.error(pair.bare):8.1%}{pair.error(pair.unread):10.1%}{pair.error(pair.told):9.1%}"
            )
    worst = 0.0
    for name, found in of_remedy.items():
        say(f"{name}: {len(found)} pairs")
        for title in ("bare", "unread", "told"):
            errors = np.abs([pair.error(getattr(pair, title)) for pair in found])
            inside = sum(
                getattr(p, title).predicted_peak_bytes.low <= p.verified <= getattr(p, title).predicted_peak_bytes.high
                for p in found
            )
            say(f"  {title:8} median {np.median(errors):6.2%}, worst {errors.max():6.2%}, in the band {inside}")
            if title == "bare":
                worst = max(worst, float(errors.max()))
                assert np.median(errors) <= 0.05
        assert len(found) >= 10
    assert worst <= 0.15
