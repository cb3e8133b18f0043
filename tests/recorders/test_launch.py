"""`launch.run` runs an unmodified script in a child, and what the child leaves is whole however the script ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from oomdoc.diagnosers.interface import CATEGORIES
from oomdoc.recorders.assumed import hint
from oomdoc.recorders.launch import RunResult, RunSpec, command, environment, run
from oomdoc.snapshots import reader
from oomdoc.snapshots.check import self_check
from oomdoc.snapshots.model import Action
from oomdoc.snapshots.timeline import extent, lifetimes, live_at

TRAIN = """\
import sys
import torch

width, batch, steps = (int(x) for x in sys.argv[1:4])
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps):
    x = torch.ones(batch, width, device="cuda")
    try:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    except Exception:
        print("caught", flush=True)
        raise
print("done", __name__, sys.argv[1:], flush=True)
"""


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job" / "train.py"
    path.parent.mkdir()
    path.write_text(text)
    return path


def launch(tmp_path: Path, text: str, *args: str, **options: Any) -> RunResult:
    path = script(tmp_path, text)
    return run(RunSpec(script=str(path), args=args, run_dir=tmp_path / "out", gpu="a100-40gb", **options))


def test_a_run_stops_after_the_steps_and_the_trace_is_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = launch(tmp_path, TRAIN, "256", "64", "100", steps=3)
    assert (result.exit_status, result.out_of_memory, result.failure, result.steps) == (0, False, None, 3)
    snapshot = reader.load(result.snapshots[0])
    assert self_check(snapshot) == ()
    assert extent(snapshot.devices[0]).complete_from_start
    recording = snapshot.recording
    assert recording is not None
    marks = recording.devices[0].marks
    assert max(mark.step for mark in marks) == 3
    assert {mark.phase for mark in marks} == {"setup", "forward", "backward", "optimizer", "other"}
    assert "caught" not in capfd.readouterr().out  # the script's `except Exception` does not see the stop


def test_parameters_gradients_and_adam_state_are_exact(tmp_path: Path) -> None:
    result = launch(tmp_path, TRAIN, "256", "64", "100", steps=2)
    snapshot = reader.load(result.snapshots[0])
    device, recording = snapshot.devices[0], snapshot.recording
    assert recording is not None
    column, rows = recording.devices[0].category, lifetimes(device)
    step = next(m.event for m in recording.devices[0].marks if m.step == 2 and m.phase == "optimizer")
    held: dict[str, int] = {}
    for row in live_at(rows, step):
        name = CATEGORIES[column[rows.birth[row]]]
        held[name] = held.get(name, 0) + int(rows.requested[row])
    parameters = 4 * 2 * (256 * 256 + 256)
    assert held["parameter"] == parameters
    assert held["gradient"] == parameters
    assert held["optimizer_state"] == 2 * parameters


def test_the_script_ends_as_under_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = launch(tmp_path, TRAIN, "64", "8", "2", steps=0)
    assert (result.exit_status, result.steps) == (0, 2)
    assert "done __main__ ['64', '8', '2']" in capfd.readouterr().out


def test_out_of_memory_is_status_1_and_the_trace_ends_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = launch(tmp_path, TRAIN, "4096", "4000000", "2")
    assert (result.exit_status, result.out_of_memory, result.failure) == (1, True, None)
    error = capfd.readouterr().err
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in error
    assert "recorders" not in error  # the traceback is the script's own
    snapshot = reader.load(result.snapshots[0])
    assert self_check(snapshot) == ()
    trace = snapshot.devices[0].trace
    [oom] = [i for i, action in enumerate(trace.action) if action == Action.OOM]
    frames = snapshot.stacks.of(int(trace.stack[oom]))
    assert any(frame.filename.endswith("train.py") for frame in frames)


def test_an_oom_that_the_script_hides_is_no_success(tmp_path: Path) -> None:
    hidden = "import torch\ntry:\n    torch.empty(1 << 36, device='cuda')\nexcept RuntimeError:\n    print('oops')\n"
    result = launch(tmp_path, hidden)
    assert (result.exit_status, result.out_of_memory) == (1, True)


def test_an_oom_that_the_script_recovers_from_is_its_own_business(tmp_path: Path) -> None:
    retry = TRAIN.replace(
        "for step", "try:\n    torch.empty(1 << 36, device='cuda')\nexcept RuntimeError:\n    pass\nfor step"
    )
    result = launch(tmp_path, retry, "64", "8", "2", steps=0)
    assert (result.exit_status, result.out_of_memory) == (0, False)


@pytest.mark.parametrize(("line", "status"), [("sys.exit(7)", 7), ("sys.exit('no')", 1), ("raise ValueError('x')", 1)])
def test_the_scripts_own_status_comes_back_and_its_memory_is_recorded(tmp_path: Path, line: str, status: int) -> None:
    result = launch(tmp_path, f"import sys\nimport torch\nx = torch.empty(1000, device='cuda')\n{line}\n")
    assert (result.exit_status, result.out_of_memory, result.failure) == (status, False, None)
    snapshot = reader.load(result.snapshots[0])
    assert extent(snapshot.devices[0]).final == 4000
    assert snapshot.recording is not None
    assert snapshot.recording.facts["ended"] in {"SystemExit", "ValueError"}


@pytest.mark.parametrize("read", [True, False])
def test_an_error_after_assumed_values_says_where_they_were_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], read: bool
) -> None:
    value = "x.max().long().item()" if read else "1"
    result = launch(tmp_path, f"import torch\nx = torch.rand(9, device='cuda')\nn = {value}\nx.view(n, 4)\n")
    assert result.exit_status == 1
    said = [line for line in capfd.readouterr().err.splitlines() if "were assumed at" in line]
    assert len(said) == read
    assert all("train.py:3, in the function that failed: the RuntimeError may come from that" in line for line in said)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("raise IndexError(9)", True),
        ("assert False", True),
        ("open('/nowhere/at/all')", False),
        ("import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)", False),
        ("import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/model')", False),
        ("import not_installed", False),
        ("not_defined", False),
        ("try:\n    open('/nowhere')\nexcept OSError as e:\n    raise ValueError('no model') from e", False),
    ],
)
def test_only_an_error_that_a_value_can_lead_to_is_told_of_it(error: str, told: bool) -> None:
    reads = [("lib.py", 7), ("train.py", 3)]
    with pytest.raises(Exception) as caught:  # noqa: PT011  (any)
        exec(compile(error, "other.py", "exec"), {})
    found = hint(caught.value, reads)
    assert (found is not None) == told
    if found is not None:
        assert found.startswith("values read from the GPU were assumed at train.py:3, lib.py:7: the ")


def test_the_values_that_the_failing_function_read_come_first() -> None:
    with pytest.raises(ValueError, match="no") as caught:
        exec(compile("def f():\n    a = 1\n    raise ValueError('no')\nf()", "train.py", "exec"), {})
    found = hint(caught.value, [("train.py", 2), ("lib.py", 1), ("lib.py", 2), ("lib.py", 3)])
    assert found == (
        "values read from the GPU were assumed at train.py:2, lib.py:3, lib.py:2 and 1 more places, in the function "
        "that failed: the ValueError may come from that"
    )


def test_sigterm_leaves_a_snapshot(tmp_path: Path) -> None:
    path = script(
        tmp_path, "import time, torch\nx = torch.empty(1000, device='cuda')\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    code = (
        "import sys; from pathlib import Path; from oomdoc.recorders.launch import RunSpec, run\n"
        f"sys.exit(run(RunSpec(script={str(path)!r}, run_dir=Path({str(tmp_path / 'out')!r}), gpu='t4')).exit_status)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ))
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    time.sleep(0.1)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(timeout=120) == 143
    assert extent(reader.load(tmp_path / "out" / "rank0.pickle").devices[0]).final == 4000
    assert json.loads((tmp_path / "out" / "rank0.status.json").read_text())["exit_status"] == 143


SLEEPS = """\
import sys, time, torch
x = torch.empty(1000, device="cuda")
try:
    print("up", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    if sys.argv[1] == "0":
        raise
    print("caught", flush=True)
    time.sleep(4.5)
    raise SystemExit(9)
"""


@contextmanager
def sleeper(tmp_path: Path, catches: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A launcher in a process group of its own, whose script is up."""
    path = script(tmp_path, SLEEPS)
    code = (
        # a job that a shell starts with `&` inherits an ignored SIGINT, and so would these
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from pathlib import Path; from oomdoc.recorders.launch import RunSpec, run\n"
        f"spec = RunSpec(script={str(path)!r}, args=({str(catches)!r},), run_dir=Path({str(tmp_path / 'out')!r}), "
        "gpu='t4')\nstatus = run(spec).exit_status\nsys.exit(128 - status if status < 0 else status)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        yield parent
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_a_sigint_to_the_launcher_alone_ends_the_script(tmp_path: Path) -> None:
    with sleeper(tmp_path, 0) as parent:
        parent.send_signal(signal.SIGINT)
        assert parent.wait(timeout=60) == 130
    assert extent(reader.load(tmp_path / "out" / "rank0.pickle").devices[0]).final == 4000


@pytest.mark.slow
def test_a_sigint_to_the_whole_group_comes_to_the_script_once(tmp_path: Path) -> None:
    """As from a terminal: the script has time to clean up, longer than the launcher waits to hear of it."""
    with sleeper(tmp_path, 1) as parent:
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(timeout=60) == 9


@pytest.mark.slow
def test_a_second_sigint_terminates(tmp_path: Path) -> None:
    with sleeper(tmp_path, 1) as parent:
        parent.send_signal(signal.SIGINT)
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"caught\n"
        parent.send_signal(signal.SIGINT)
        assert parent.wait(timeout=60) == 130


def test_a_missing_script_is_a_usage_error_in_one_line(tmp_path: Path) -> None:
    result = run(RunSpec(script=str(tmp_path / "nope.py"), run_dir=tmp_path / "out", gpu="a100-40gb"))
    assert result.exit_status == 2
    assert result.failure is not None
    assert "nope.py" in result.failure


def test_a_module_runs_with_dash_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "__main__.py").write_text(
        "import torch, sys\nx = torch.empty(int(sys.argv[1]), device='cuda')\n"
    )
    monkeypatch.chdir(tmp_path)
    result = run(RunSpec(script="pkg", module=True, args=("1000",), run_dir=tmp_path / "out", gpu="a100-40gb"))
    assert result.exit_status == 0
    assert result.snapshots


def test_progress_tells_step_phase_and_bytes(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    path = script(tmp_path, TRAIN)
    run(
        RunSpec(script=str(path), args=("64", "8", "2"), run_dir=tmp_path / "out", gpu="a100-40gb"),
        lambda record: seen.append(dict(record)),
    )
    told = {"step", "phase", "allocated_bytes", "peak_bytes", "events"}
    told |= {"rank", "pid", "reserved_bytes", "free_bytes", "total_bytes", "parts"}
    assert set(seen[-1]) == told
    assert 4 * 2 * (64 * 64 + 64) in {each["parts"]["parameter"] for each in seen}
    assert seen[-1]["peak_bytes"] > 4 * 2 * (64 * 64 + 64)


def test_a_rank_of_many_gets_torchruns_environment() -> None:
    spec = RunSpec(script="x.py", run_dir=Path("out"), nproc_per_node=8, nnodes=4, rank=19)
    env = environment(spec)
    assert {key: env[key] for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK")} == {
        "RANK": "19",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "32",
        "GROUP_RANK": "2",
    }
    assert environment(RunSpec(script="x.py", run_dir=Path("out"))) == {}


def test_several_real_ranks_run_under_torchrun() -> None:
    spec = RunSpec(script="x.py", run_dir=Path("out"), mode="cuda", nproc_per_node=8)
    assert command(spec, Path("/s.json"))[1:5] == ["-m", "torch.distributed.run", "--nproc-per-node=8", "--nnodes=1"]


def test_an_unknown_operation_is_named_with_its_line_and_ends_with_status_2(tmp_path: Path) -> None:
    unknown = (
        "import torch\n"
        "lib = torch.library.Library('mine', 'DEF')\n"
        "lib.define('mystery(Tensor x) -> Tensor')\n"
        "x = torch.empty(4, device='cuda')\n"
        "torch.ops.mine.mystery(x)\n"
    )
    result = launch(tmp_path, unknown)
    assert result.exit_status == 2
    status = json.loads((tmp_path / "out" / "rank0.status.json").read_text())
    assert status["failure"]["operation"] == "mine::mystery"
    assert (status["failure"]["file"], status["failure"]["line"]) == (str(tmp_path / "job" / "train.py"), 5)
    assert result.failure is not None
    assert "register_fake" in result.failure


def test_a_forked_child_of_the_script_leaves_the_recording_alone(tmp_path: Path) -> None:
    forks = (
        "import os, sys, torch\n"
        "x = torch.empty(1000, device='cuda')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    sys.exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3\n"
        "y = torch.empty(1000, device='cuda')\n"
    )
    result = launch(tmp_path, forks)
    assert result.exit_status == 0
    assert extent(reader.load(result.snapshots[0]).devices[0]).final == 8000
