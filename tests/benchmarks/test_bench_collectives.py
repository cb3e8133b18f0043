"""Collectives: predicted against measured, system by system, beside the alpha-beta line fitted to that system."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "remedies"))
from nccl_measurements import MIB, systems

pytestmark = pytest.mark.slow


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _median(errors: np.ndarray) -> str:  # type: ignore[type-arg]
    return f"{np.median(np.abs(errors)):8.1%}" if len(errors) else f"{'':8}"


def test_the_table_of_collectives(shared: Path) -> None:
    say(f"\n{'median error':56}{'rows':>5}{'>=1 MiB':>8}{'line':>8}{'<1 MiB':>8}{'line':>8}")
    every: dict[str, list[float]] = {"large": [], "small": [], "large line": [], "small line": []}
    for system in systems(shared):
        large = system.nbytes >= MIB
        ours, line = system.errors(), system.line_errors()
        every["large"] += np.abs(ours[large]).tolist()
        every["small"] += np.abs(ours[~large]).tolist()
        curve = len(ours) >= 3  # two points fit every line
        if curve:
            every["large line"] += np.abs(line[large]).tolist()
            every["small line"] += np.abs(line[~large]).tolist()
        say(
            f"{system.collective + ' ' + system.name:56.56}{len(ours):5}{_median(ours[large])}"
            f"{_median(line[large]) if curve else '':8}{_median(ours[~large])}{_median(line[~large]) if curve else ''}"
        )
    for name, errors in every.items():
        say(f"{name}: median {np.median(errors):.1%}, mean {np.mean(errors):.1%}, {len(errors)} rows")
    assert np.median(every["large"]) <= 0.12
    assert np.median(every["small"]) <= 0.13
    for size in ("large", "small"):
        assert np.median(every[size]) < np.median(every[f"{size} line"])
