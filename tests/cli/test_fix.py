"""`oomdoc fix`: a unified diff that `patch` accepts, or the file itself with its old text kept."""

import re
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
    assert "torch, hf, accelerate, deepspeed, lightning, torchtitan, torchtune, axolotl" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "status", "says"),
    [
        ("a.yaml", "output_dir: [\n", 3, "is not valid YAML or JSON (line"),
        (
            "ds.json",
            '{"train_micro_batch_size_per_gpu": 8,\n "zero_optimization": {} "x"}',
            3,
            "is not valid JSON (line 2",
        ),
        ("t.toml", "[training\n", 3, "is not valid TOML"),
        ("a.yaml", "name: my-project\nversion: 3\n", 2, "is no config that oomdoc knows: say --framework"),
        ("a.yaml", "output_dir: x\nbf16: false\nbf16: true\n", 3, "'bf16' is there twice (lines 2 and 3)"),
        ("a.yaml", "output_dir: x\nper_device_train_batch_size: 6\n", 2, "cannot be cut into 4 equal micro-batches"),
        ("a.yaml", "\xff\xfe\x00", 3, "it is not text in UTF-8"),
        ("t.toml", "[training]\nlocal_batch_size = 8\n[job]\n", 2, "give it as a number"),
    ],
)
def test_a_broken_or_foreign_file_stays_as_it_is(
    oomdoc: Run, tmp_path: Path, planned: Path, name: str, text: str, status: int, says: str
) -> None:
    """One line, its status, and not a byte changed even with --write."""
    content = text.encode("latin-1")
    (tmp_path / name).write_bytes(content)
    (planned / "oomdoc.yaml").write_text(PLAN.replace(", world_size: 1", ""))
    done = oomdoc("fix", planned / "oomdoc.yaml", "--config", name, "--write")
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / name).read_bytes() == content
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, "planned"])


def test_line_ends_stay_and_no_backup_is_lost(oomdoc: Run, tmp_path: Path, planned: Path) -> None:
    """Also the mode of the file, and a link to it."""
    real = tmp_path / "real.yaml"
    real.write_bytes(ARGUMENTS.replace("\n", "\r\n").encode())
    real.chmod(0o640)
    (tmp_path / "args.yaml").symlink_to("real.yaml")
    assert oomdoc("fix", planned / "oomdoc.yaml", "--config", "args.yaml", "--write").returncode == 0
    once = real.read_bytes()
    assert once.count(b"\n") == once.count(b"\r\n") == ARGUMENTS.count("\n") + 2
    assert (tmp_path / "args.yaml").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    (planned / "oomdoc.yaml").write_text(PLAN.replace("bfloat16", "float16"))
    assert oomdoc("fix", planned / "oomdoc.yaml", "--config", "args.yaml", "--write").returncode == 0
    assert (tmp_path / "real.yaml.bak").read_bytes() == ARGUMENTS.replace("\n", "\r\n").encode()
    assert (tmp_path / "real.yaml.bak1").read_bytes() == once


def test_what_cannot_be_written_at_all_is_wrong_usage(oomdoc: Run, tmp_path: Path, planned: Path) -> None:
    """An accelerate config has no key for the batch."""
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\n"
    (tmp_path / "accelerate.yaml").write_text(text)
    (planned / "oomdoc.yaml").write_text(PLAN.replace("  - {name: mixed-precision, dtype: bfloat16}\n", ""))
    done = oomdoc("fix", planned / "oomdoc.yaml", "--config", "accelerate.yaml")
    assert done.returncode == 2
    assert "pass gradient_accumulation_steps to Accelerator()" in done.stderr
    assert done.stdout == ""


TRAIN = """import argparse, torch, yaml
config = yaml.safe_load(open(argparse.ArgumentParser().parse_known_args()[1][0]))
layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.randn(16384, 512))
for i, (x,) in enumerate(torch.utils.data.DataLoader(rows, batch_size=config["per_device_train_batch_size"])):
    layers(x.cuda()).square().mean().backward()
    if (i + 1) % config.get("gradient_accumulation_steps", 1) == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_patched_config_is_proven_by_running_with_it(oomdoc: Run, tmp_path: Path, planned: Path) -> None:
    """Predicted against verified; with a change that does not do, status 1 and the file untouched."""
    (tmp_path / "train.py").write_text(TRAIN)
    text = "output_dir: out\nper_device_train_batch_size: 8192\n"
    (tmp_path / "args.yaml").write_text(text)
    arguments = ("--gpu", "a100-40gb", "--capacity", "700MiB", "--steps", "1")
    done = oomdoc("run", *arguments, "-o", "run", "train.py", "args.yaml")
    assert done.returncode == 1, done.stderr
    offload = "schema: oomdoc.config/1\nremedies:\n  - {name: cpu-offload, what: [activations]}\n"
    (tmp_path / "run" / "oomdoc.yaml").write_text(offload)
    whole = ("--gpu", "a100-40gb", "--steps", "1", "-o", "run/unlimited", "train.py", "args.yaml")  # as plan leaves it
    assert oomdoc("run", *whole).returncode == 0
    done = oomdoc("fix", "--no-verify", "run", "--config", "args.yaml")
    assert "args.yaml cannot express all of the plan (cpu-offload): taking the next by estimate" in done.stderr
    assert "+bf16: true" in done.stdout
    plan = "schema: oomdoc.config/1\nremedies:\n  - {name: gradient-accumulation, micro_batches: %d}\n"
    (tmp_path / "run" / "oomdoc.yaml").write_text(plan % 8 + "expected: {peak_bytes: 41943040}\n")
    done = oomdoc("fix", "run", "--config", "args.yaml", "--write")
    assert done.returncode == 0, done.stderr
    assert re.search(r"predicted 40\.0+ MiB, verified \d+\.\d+ MiB on the virtual a100-40gb: fits", done.stderr)
    assert "per_device_train_batch_size: 1024" in (tmp_path / "args.yaml").read_text()
    (tmp_path / "args.yaml").write_text(text.replace("8192", "16384"))
    (tmp_path / "run" / "oomdoc.yaml").write_text(plan % 2)
    done = oomdoc("fix", "run", "--config", "args.yaml", "--write")
    assert done.returncode == 1, done.stderr
    assert "out of memory" in done.stderr
    assert "16384" in (tmp_path / "args.yaml").read_text()


LEAK = """import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for _ in range(6):
    x = torch.randn(4096, 512, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    total += torch.relu(model(x)).square().mean()  # the validation
"""


def test_a_change_of_code_is_shown_and_written_only_when_asked(oomdoc: Run, tmp_path: Path) -> None:
    """The line that the diagnosis names, as a diff; the old file is kept."""
    (tmp_path / "leak.py").write_text(LEAK)
    assert oomdoc("run", "--gpu", "a100-40gb", "-o", "run", "leak.py").returncode == 0
    shown = oomdoc("fix", "--code", "run")
    assert shown.returncode == 0, shown.stderr
    assert "detach-retained-graph at leak.py:10: Each step leaves" in shown.stderr
    assert "+    total += torch.relu(model(x)).square().mean().detach()  # the validation" in shown.stdout
    assert (tmp_path / "leak.py").read_text() == LEAK
    written = oomdoc("fix", "--code", "--write", "run")
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "leak.py").read_text() == LEAK.replace(".mean()  #", ".mean().detach()  #")
    assert (tmp_path / "leak.py.bak").read_text() == LEAK
