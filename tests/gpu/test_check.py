"""The GPU check: on a GPU as it is, elsewhere on the tests' model of a device, which proves the script itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHECK = Path(__file__).with_name("check.py")


@pytest.mark.slow
def test_the_script_runs_through_on_the_model_of_a_device(tmp_path: Path) -> None:
    """Every check comes to a verdict, and none fails; what needs a GPU says so."""
    command = [sys.executable, str(CHECK), "--fake", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "rows.json").read_text())
    assert content["fake"] is True
    rows = content["rows"]
    assert {row["check"] for row in rows} == {"categories", "peak", "oom", "replay", "overhead", "virtual", "remedies"}
    assert sum(row["good"] is True for row in rows) >= 18
    assert [row for row in rows if row["good"] is False] == []
    assert "rows hold, 0 fail" in done.stdout


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, str(CHECK)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "no GPU here: nothing was checked (--fake proves the script)\n")
    assert not (tmp_path / "gpu-check.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(CHECK)], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
