"""`oomdoc fix`: a unified diff that `patch` accepts, or the file itself with its old text kept."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

PLAN = """schema: oomdoc.config/1
for: {script: train.py, gpu: a100-40gb, world_size: 1}
remedies:
  - {name: mixed-precision, dtype: bfloat16}
  - {name: gradient-accumulation, micro_batches: 4}
expected: {peak_bytes: 1073741824, step_time_factor: 0.7}
"""
ARGUMENTS = """# how we train
output_dir: out
per_device_train_batch_size: 16  # as large as fits
learning_rate: 0.0003
"""


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    folder = tmp_path / "planned"
    folder.mkdir()
    (folder / "oomdoc.yaml").write_text(PLAN)
    return folder


def test_the_diff_is_one_that_patch_takes(oomdoc: Run, tmp_path: Path, planned: Path) -> None:
    """Nothing is written; what is printed can be applied."""
    (tmp_path / "args.yaml").write_text(ARGUMENTS)
    done = oomdoc("fix", planned / "oomdoc.yaml", "--config", "args.yaml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "args.yaml").read_text() == ARGUMENTS
    assert done.stdout.startswith("--- a/args.yaml\n+++ b/args.yaml\n")
    applied = subprocess.run(["patch", "-p1"], cwd=tmp_path, input=done.stdout, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stdout
    text = (tmp_path / "args.yaml").read_text()
    assert "# how we train" in text
    assert "bf16: true" in text
    assert "gradient_accumulation_steps: 4" in text
    assert "per_device_train_batch_size: 4" in text  # the effective batch stays


def test_writing_keeps_the_old_file(oomdoc: Run, tmp_path: Path, planned: Path) -> None:
    """And says where."""
    (tmp_path / "args.yaml").write_text(ARGUMENTS)
    done = oomdoc("fix", planned / "oomdoc.yaml", "--config", "args.yaml", "--write")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert (tmp_path / "args.yaml.bak").read_text() == ARGUMENTS
    assert "bf16: true" in (tmp_path / "args.yaml").read_text()
    again = oomdoc("fix", planned / "oomdoc.yaml", "--config", "args.yaml", "--framework", "torch")
    assert again.returncode == 2  # an HF file is no oomdoc.yaml


def test_a_new_file_for_plain_torch(oomdoc: Run, tmp_path: Path, planned: Path) -> None:
    """Without --config the plan itself becomes ./oomdoc.yaml, whole."""
    shown = oomdoc("fix", planned / "oomdoc.yaml")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("--- /dev/null\n+++ b/oomdoc.yaml\n")
    subprocess.run(["git", "apply"], input=shown.stdout, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "oomdoc.yaml").read_text() == PLAN
    (tmp_path / "oomdoc.yaml").unlink()
    assert oomdoc("fix", planned / "oomdoc.yaml", "--write").returncode == 0
    assert (tmp_path / "oomdoc.yaml").read_text() == PLAN
    again = oomdoc("fix", planned / "oomdoc.yaml")
    assert "nothing to change in oomdoc.yaml" in again.stderr
    assert again.stdout == ""


def test_a_bare_recording_is_fixed_by_estimate(oomdoc: Run, shared: Path) -> None:
    """And the estimate is called one."""
    snapshot = shared / "data" / "snapshots" / "lm-full-step-adamw.pickle"
    done = oomdoc("fix", "--gpu", "a100-80gb", "--capacity", "60GiB", snapshot)
    assert done.returncode == 0, done.stderr
    assert "which is an estimate" in done.stderr
    assert "+schema: oomdoc.config/1" in done.stdout


def test_a_framework_nobody_knows(oomdoc: Run, planned: Path) -> None:
    """Usage, with the list."""
    done = oomdoc("fix", planned / "oomdoc.yaml", "--framework", "caffe")
    assert done.returncode == 2
    assert "torch, hf, deepspeed" in done.stderr
