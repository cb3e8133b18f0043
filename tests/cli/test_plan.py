"""`oomdoc plan`: a script that does not fit is planned, each proof is a run, and the plan it writes makes it fit."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "report.schema.json").read_text(encoding="utf-8"))

# Eight blocks whose activations are many times their weights, as users write it.
DEEP = """
import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.inner(x)


model = nn.Sequential(*(Block(512) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(8192, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    path = tmp_path / "deep.py"
    path.write_text(DEEP)
    return path


@pytest.mark.slow
def test_a_script_is_planned_proven_and_fixed(oomdoc: Run, tmp_path: Path, deep: Path) -> None:
    """The failure, the ranked changes with a verified peak, oomdoc.yaml, and the same script fitting with it."""
    card = ["--gpu", "t4", "--capacity", "1GiB"]
    done = oomdoc("plan", *card, "--format", "json", deep)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA, jsonschema.Draft202012Validator)
    assert report["verdict"]["out_of_memory"] is True
    proven = [each for each in report["remedies"] if each["verified"] and each["verified"]["fits"]]
    assert proven
    assert report["remedies"][0] == proven[0]
    assert all(each["verified"]["on"] == "virtual" for each in proven)
    for each in proven:
        predicted = each["predicted_peak_bytes"]["expected"]
        assert abs(each["verified"]["peak_bytes"] - predicted) <= 0.3 * predicted
    config = tmp_path / ".oomdoc" / "latest" / "oomdoc.yaml"
    fixed = oomdoc("run", *card, "--apply", config, "--format", "json", deep)
    assert fixed.returncode == 0, fixed.stderr
    again = json.loads(fixed.stdout)
    assert again["verdict"]["out_of_memory"] is False
    assert again["devices"][0]["peak"]["allocated_bytes"] == proven[0]["verified"]["peak_bytes"]


def test_a_run_directory_is_planned_like_its_script(oomdoc: Run, deep: Path) -> None:
    """`plan` knows how the run was made; without --verify it only estimates, and says so."""
    assert oomdoc("run", "--gpu", "t4", "--capacity", "1GiB", deep).returncode == 1
    done = oomdoc("plan", "--no-verify")
    assert "What would make it fit" in done.stdout
    assert "not run" in done.stdout
    assert "trained" not in done.stdout


@pytest.mark.slow
def test_when_nothing_fits_the_status_says_so(oomdoc: Run, tmp_path: Path) -> None:
    """One tensor larger than the card: no remedy helps, status 1."""
    path = tmp_path / "large.py"
    path.write_text("import torch\nx = torch.empty(2**30, device='cuda')\n")
    done = oomdoc("plan", "--gpu", "t4", "--capacity", "1GiB", path)
    assert done.returncode == 1
    assert "oomdoc run" not in done.stdout


@pytest.mark.slow
def test_a_recording_is_planned_by_estimates(oomdoc: Run, shared: Path) -> None:
    """A snapshot of another machine: no script to run, another card to judge it against."""
    snapshot = shared / "data" / "snapshots" / "lm-full-step-adamw.pickle"
    done = oomdoc("plan", "--gpu", "l40s", "--format", "json", snapshot)
    report = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA, jsonschema.Draft202012Validator)
    assert report["remedies"]
    assert all(each["verified"] is None for each in report["remedies"])
    assert report["devices"][0]["capacity_bytes"] == round(44.39 * 2**30)


@pytest.mark.slow
def test_a_plan_for_another_job_is_used_with_a_warning(oomdoc: Run, tmp_path: Path, deep: Path) -> None:
    """What it was made for is named; a file with a key nobody knows stops the run before it starts."""
    config = tmp_path / "plan.yaml"
    text = "schema: oomdoc.config/1\nfor: {script: deep.py, gpu: h200}\nremedies:\n  - {name: mixed-precision}\n"
    config.write_text(text)
    done = oomdoc("run", "--gpu", "t4", "--steps", "1", "--apply", config, deep.name)
    assert done.returncode == 0, done.stderr
    assert "planned for gpu h200, used with t4" in done.stderr
    config.write_text(text.replace("mixed-precision", "mixed-precision, speed: 2"))
    refused = oomdoc("run", "--gpu", "t4", "--apply", config, deep.name)
    assert refused.returncode == 2
    assert "speed" in refused.stderr
    assert refused.stderr.count("\n") == 1
