"""Every reference recording through the real command line: status, schema, and the bytes of the index."""

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "configs" / "report.schema.json").read_text(encoding="utf-8"))


def index(shared: Path) -> dict[str, list[dict[str, str]]]:
    rows: dict[str, list[dict[str, str]]] = {}
    with (shared / "data" / "snapshots" / "INDEX.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["name"], []).append(row)
    return rows


def analyzed(oomdoc: Run, file: Path, *options: str) -> dict[str, Any]:
    done = oomdoc("analyze", "--format", "json", *options, file)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA, jsonschema.Draft202012Validator)
    assert (done.returncode == 1) == report["verdict"]["out_of_memory"]
    return report


@pytest.mark.slow
def test_every_recording_is_reported_with_its_true_peak(oomdoc: Run, shared: Path) -> None:
    """Start, peak, final and reserved bytes of every device are those of the index, exactly."""
    checked = 0
    for name, rows in index(shared).items():
        devices = {each["device"]: each for each in analyzed(oomdoc, shared / "data" / "snapshots" / name)["devices"]}
        for row in rows:
            if not row["true_peak_bytes"]:
                continue
            device = devices[int(row["device"])]
            found = (device["start_bytes"], device["peak"]["requested_bytes"], device["final_bytes"])
            assert found == tuple(int(row[key]) for key in ("start_bytes", "true_peak_bytes", "final_live_bytes")), name
            checked += 1
    assert checked >= 20


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_prose_reports_of_a_recording(oomdoc: Run, shared: Path, form: str) -> None:
    """They name the peak that the JSON has."""
    file = shared / "data" / "snapshots" / "lm-full-step-adamw.pickle"
    peak = analyzed(oomdoc, file)["devices"][0]["peak"]["requested_bytes"]
    done = oomdoc("analyze", "--format", form, file)
    assert f"{peak / 2**30:.2f} GiB" in done.stdout
