"""`oomdoc run`, and `oomdoc gate` of one script, on scripts as users write them, on the virtual GPU."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "report.schema.json").read_text(encoding="utf-8"))
MIB = 2**20

# A layer of 64 MiB of weights, its gradient and Adam's two moments: 256 MiB that anyone can check by hand.
TRAIN = """
import sys
import torch

width = int(sys.argv[sys.argv.index("--width") + 1]) if "--width" in sys.argv else 4096
print("arguments", sys.argv[1:])
model = torch.nn.Linear(width, width, bias=False, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for step in range(2):
    optimizer.zero_grad()
    loss = model(torch.ones(8, width, device="cuda")).sum()
    loss.backward()
    optimizer.step()
print("trained")
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def report_of(text: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)
    jsonschema.validate(content, SCHEMA, jsonschema.Draft202012Validator)
    return content


def test_a_script_that_fits(oomdoc: Run, tmp_path: Path, train: Path) -> None:
    """Status 0, the numbers that a person gets by hand, and a run directory with everything in it."""
    done = oomdoc("run", "--gpu", "a100-40gb", "--format", "json", train)
    assert done.returncode == 0, done.stderr
    report = report_of(done.stdout)
    categories = {name: each["bytes"] for name, each in report["devices"][0]["categories"].items()}
    assert categories["parameter"] == 64 * MIB
    assert categories["optimizer_state"] in (128 * MIB, 128 * MIB + 4)
    assert report["devices"][0]["estimated_bytes"] == 0
    reserved = report["devices"][0]["peak"]["reserved_bytes"]
    known, outside = dict(report["devices"][0]["peak_range"]), report["devices"][0]["outside_bytes"]
    assert known.pop("leave_bytes") == round(0.05 * (reserved + outside))
    assert known == {"low_bytes": reserved, "high_bytes": reserved, "brief_bytes": 0}
    assert report["source"]["kind"] == "virtual"
    assert report["source"]["gpu"] == "a100-40gb"
    assert "trained" in done.stderr  # a machine reads stdout: the script's own output makes way
    latest = tmp_path / ".oomdoc" / "latest"
    assert (latest / "rank0.pickle").is_file()
    assert json.loads((latest / "report.json").read_text()) == report
    assert (tmp_path / ".oomdoc" / ".gitignore").read_text() == "*\n"


@pytest.mark.slow
def test_what_cudnn_does_not_tell_widens_the_peak(oomdoc: Run, tmp_path: Path) -> None:
    """An LSTM's reserve: in the range of the report, and in what to leave beside the peak."""
    script = tmp_path / "lstm.py"
    script.write_text("import torch\nlstm = torch.nn.LSTM(256, 256).cuda()\nlstm(torch.ones(64, 32, 256).cuda())\n")
    report = report_of(oomdoc("run", "--format", "json", script).stdout)
    (device,) = report["devices"]
    low, high = (device["peak_range"][f"{end}_bytes"] for end in ("low", "high"))
    assert low < device["peak"]["reserved_bytes"] < high
    assert device["peak_range"]["leave_bytes"] > high - device["peak"]["reserved_bytes"]
    assert "Leave " in oomdoc("run", script).stdout


def test_a_script_that_does_not_fit(oomdoc: Run, train: Path) -> None:
    """Status 1, the verdict first, the script's output above it, and what to type next."""
    done = oomdoc("run", "--gpu", "a100-40gb", "--capacity", "700MiB", train)
    assert done.returncode == 1, done.stderr
    assert done.stdout.index("arguments []") < done.stdout.index("OUT OF MEMORY")
    assert "$ oomdoc plan .oomdoc/train-" in done.stdout
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB" in done.stderr


def test_the_machine_that_the_job_is_for(oomdoc: Run, train: Path) -> None:
    """Its CUDA context and its torch; the line to run again names both."""
    where = ("--gpu", "a100-40gb", "--cuda-context", "900MiB", "--target-torch", "2.4.1+cu121")
    done = oomdoc("run", *where, "--format", "json", train)
    assert done.returncode == 0, done.stderr
    [device] = report_of(done.stdout)["devices"]
    assert 900 * MIB <= device["outside_bytes"] < 902 * MIB
    command = json.loads((train.parent / ".oomdoc" / "latest" / "run.json").read_text())
    assert (command["context_bytes"], command["target_torch"]) == (900 * MIB, "2.4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target-torch", "newest"), "--target-torch takes a version of PyTorch 2, such as 2.4; not 'newest'"),
        (("--target-torch", "1.13"), "--target-torch takes a version of PyTorch 2"),
        (("--cuda-context", "much"), "'much' is not a size"),
    ],
)
def test_a_machine_that_is_none(oomdoc: Run, train: Path, options: tuple[str, ...], message: str) -> None:
    done = oomdoc("run", "--gpu", "t4", *options, train)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_stands_behind_the_script_is_the_script_s(oomdoc: Run, train: Path) -> None:
    """Even options that oomdoc has too."""
    done = oomdoc("run", "--gpu", "a100-40gb", "--steps", "1", train, "--gpu", "mine", "--width", "512", "--help")
    assert done.returncode == 0, done.stderr
    assert "arguments ['--gpu', 'mine', '--width', '512', '--help']" in done.stdout
    assert "trained" not in done.stdout  # stopped after one step


def test_a_module(oomdoc: Run, tmp_path: Path) -> None:
    """As `python -m` finds it: from the current folder."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    done = oomdoc("run", "--gpu", "a100-40gb", "-o", "here", "-m", "package.train", "--width", "256")
    assert done.returncode == 0, done.stderr
    assert "arguments ['--width', '256']" in done.stdout
    assert (tmp_path / "here" / "rank0.pickle").is_file()


@pytest.mark.parametrize(("line", "status"), [("sys.exit(7)", 7), ("raise ValueError('no')", 1), ("sys.exit(0)", 0)])
def test_a_script_that_fails_of_itself_keeps_its_status(oomdoc: Run, tmp_path: Path, line: str, status: int) -> None:
    """And its traceback; the memory until then is still told."""
    path = tmp_path / "fails.py"
    path.write_text(f"import sys, torch\nkept = torch.zeros(1024, 1024, device='cuda')\n{line}\n")
    done = oomdoc("run", "--gpu", "t4", path)
    assert done.returncode == status
    assert "4.0 MiB" in done.stdout
    assert ("the script ended with status" in done.stderr) == bool(status)
    assert ("● NO OUT OF MEMORY" in done.stdout) == (not status)
    assert ("● THE SCRIPT ENDED EARLY (" in done.stdout) == bool(status)
    assert ("$ oomdoc plan" in done.stdout) == (not status)


@pytest.mark.parametrize(
    ("text", "status", "own"),
    [
        ("import argparse; argparse.ArgumentParser().parse_args(['--no'])", 2, "unrecognized arguments: --no"),
        ("x = = 1", 1, "SyntaxError"),
    ],
)
def test_a_script_that_fails_before_the_gpu(oomdoc: Run, tmp_path: Path, text: str, status: int, own: str) -> None:
    """Its own error, one line of ours, its status; a machine still gets its report."""
    (tmp_path / "fails.py").write_text(text)
    done = oomdoc("run", "--gpu", "t4", "fails.py")
    assert (done.returncode, done.stdout) == (status, "")
    line = f"oomdoc: the script ended with status {status} before it used the GPU; its own error is above\n"
    assert own in done.stderr.removesuffix(line)
    assert done.stderr.endswith(line)
    report = report_of((tmp_path / ".oomdoc" / "latest" / "report.json").read_text())
    assert report["verdict"]["summary"] == f"The script ended with status {status} before it used the GPU."
    shown = oomdoc("analyze").stdout
    assert "NO GPU MEMORY RECORDED" in shown
    assert "oomdoc plan" not in shown


def test_a_request_larger_than_the_card(oomdoc: Run, tmp_path: Path) -> None:
    """The whole report is valid JSON of the contract, though the request is several times the card."""
    path = tmp_path / "large.py"
    path.write_text("import torch\nlarge = torch.empty(2**30, device='cuda')\n")
    done = oomdoc("run", "--gpu", "t4", "--capacity", "1GiB", "--format", "json", path)
    assert done.returncode == 1
    report = report_of(done.stdout)
    assert report["devices"][0]["oom"]["requested_bytes"] == 2**32
    assert report["findings"][0]["bytes"] <= 2**32


def test_output_goes_to_a_file_and_the_script_keeps_stdout(oomdoc: Run, tmp_path: Path, train: Path) -> None:
    """With --output nobody needs stdout but the script."""
    done = oomdoc("run", "--gpu", "t4", "--format", "markdown", "--output", "report.md", train)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert (tmp_path / "report.md").read_text().startswith("## No out of memory")


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "status"), [("410MiB", 0), ("390MiB", 1)])
def test_the_gate_runs_the_script(oomdoc: Run, train: Path, budget: str, status: int) -> None:
    """By hand: weights, gradient, two moments and Adam's two temporaries of 64 MiB each, two cuBLAS workspaces."""
    done = oomdoc("gate", "--budget", budget, "--gpu", "a100-40gb", "--format", "json", train)
    assert done.returncode == status, done.stderr
    gate = report_of(done.stdout)["gate"]
    assert gate["passed"] == (status == 0)
    assert 0 <= gate["peak_bytes"] - (6 * 64 + 2 * 8.125) * MIB < MIB


@pytest.mark.slow
def test_the_gate_reads_a_run_directory(oomdoc: Run, train: Path) -> None:
    """What another job recorded; the same bytes as when it was run."""
    assert oomdoc("run", "--gpu", "a100-40gb", train).returncode == 0
    done = oomdoc("gate", "--budget", "200MiB", ".oomdoc/latest")
    assert done.returncode == 1
    assert "● Gate exceeded" in done.stdout
    assert "too much" in done.stdout


def test_an_out_of_memory_never_passes_the_gate(oomdoc: Run, train: Path) -> None:
    """However large the budget is."""
    done = oomdoc("gate", "--budget", "1TiB", "--gpu", "a100-40gb", "--capacity", "700MiB", train)
    assert done.returncode == 1
    assert "the job ran out of memory" in done.stdout


def test_a_script_that_fails_cannot_be_judged(oomdoc: Run, tmp_path: Path) -> None:
    """Its status is not taken for the gate's."""
    path = tmp_path / "fails.py"
    path.write_text("raise SystemExit(1)\n")
    done = oomdoc("gate", "--budget", "1GiB", "--gpu", "t4", path)
    assert done.returncode == 3
    assert "the gate cannot judge it" in done.stdout


RETRY = """
import torch

model = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
batch = 1 << 17
for step in range(3):
    while True:
        try:
            loss = model(torch.ones(batch, 4096, device="cuda")).sum()
            loss.backward()
            break
        except torch.OutOfMemoryError:
            batch //= 2
    optimizer.step()
    optimizer.zero_grad()
print("trained with", batch)
"""


@pytest.mark.slow
def test_caught_errors_are_no_failure(oomdoc: Run, tmp_path: Path) -> None:
    """Report, gate and plan judge how the script ended; the report says what it caught, in one sentence."""
    path = tmp_path / "retry.py"
    path.write_text(RETRY)
    done = oomdoc("run", "--gpu", "a100-40gb", "--capacity", "1GiB", "-o", "here", "--format", "json", path)
    assert done.returncode == 0, done.stderr
    report = report_of(done.stdout)
    assert report["verdict"]["out_of_memory"] is False
    assert report["devices"][0]["oom"] is None
    tried = int(done.stderr.split("trained with ")[1].split()[0])
    halvings = (1 << 17).bit_length() - tried.bit_length()
    assert halvings > 1
    assert f"{halvings} out-of-memory errors were caught on the way; the script" in report["verdict"]["summary"]
    assert oomdoc("gate", "--budget", "1GiB", "here").returncode == 0
    planned = oomdoc("plan", "--no-verify", "here")
    assert planned.returncode == 0
    assert "NO OUT OF MEMORY" in planned.stdout
