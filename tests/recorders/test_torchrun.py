"""`oomdoc run` over real torchrun and gloo, on CPU: everything ends as without it, and nothing written is lost.

Each rank's GPU is the model of one in `fake_device`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots import reader

HERE = Path(__file__).parent
FAKE = {"OOMDOC_ACCELERATOR": "fake_device:FakeDevice", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
TRAIN = """\
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters())


def step():
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


step()
step()
words = f"rank={rank} of {world} argv={sys.argv} file={__file__} name={__name__} path={sys.path[0]}\\n"
sys.stdout.write(words)  # in one piece: ranks share the pipe
sys.stdout.flush()
"""
LEAVE = "dist.barrier()\ndist.destroy_process_group()\n"  # without, gloo's threads may abort the ranks that end last
ALONE = (
    TRAIN.replace('dist.init_process_group("gloo")\n', "")
    .replace("dist.get_rank(), dist.get_world_size()", "int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])")
    .replace("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))", "torch.nn.Linear(256, 256)")
)


def job(tmp_path: Path, end: str) -> Path:
    path = tmp_path / "job" / "train.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TRAIN + end)
    return path


def environment(**more: str) -> dict[str, str]:
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **FAKE, "PYTHONPATH": os.pathsep.join(paths), **more}


def oomdoc(*words: str) -> list[str]:
    return [sys.executable, "-m", "oomdoc", "run", "--real", *words]


def torchrun(*words: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", *words]


def finished(command: list[str], tmp_path: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=tmp_path, env=environment(**more), capture_output=True, text=True, timeout=240)


def said(text: str) -> set[str]:
    return set(re.findall(r"rank=.*", text))


def status(run_dir: Path, rank: int) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads((run_dir / f"rank{rank}.status.json").read_text())
    return content


@pytest.mark.slow
def test_two_ranks_run_as_under_torchrun(tmp_path: Path) -> None:
    """The same words from every rank: arguments, __file__, sys.path; a snapshot and a summary each; status 0."""
    path = job(tmp_path, LEAVE)
    alone = finished(torchrun("--nproc-per-node=2", str(path), "--lr", "1", "-o"), tmp_path)
    done = finished(oomdoc("--nproc-per-node", "2", "-o", "out", str(path), "--lr", "1", "-o"), tmp_path)
    assert (alone.returncode, done.returncode) == (0, 0), done.stderr
    assert said(done.stdout) == said(alone.stdout)
    assert len(said(done.stdout)) == 2
    for rank in (0, 1):
        [device] = build([reader.load(tmp_path / "out" / f"rank{rank}.pickle")]).devices
        assert (device.rank, device.peak.step, device.peak.phase) == (rank, 1, "optimizer")
        assert len((tmp_path / "out" / f"rank{rank}.summary.json").read_bytes()) < 16_384
    assert "Ranks (2 of 2)" in done.stdout


def test_the_rank_that_runs_out_of_memory_is_named_and_every_rank_leaves_its_file(tmp_path: Path) -> None:
    end = "if rank == 1:\n    torch.empty(1 << 28)\ndist.barrier()\n"
    path = job(tmp_path, end)
    done = finished(
        oomdoc("--nproc-per-node", "2", "-o", "out", "--format", "json", "--output", "r.json", str(path)),
        tmp_path, FAKE_DEVICE_RANK="1", FAKE_DEVICE_BYTES=str(1 << 30),
    )  # fmt: skip
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["verdict"]["out_of_memory"], report["verdict"]["rank"]) == (True, 1)
    assert report["ranks"]["first_failure"] == 1
    assert "Rank 1 " in report["verdict"]["summary"]
    for rank in (0, 1):
        assert reader.load(tmp_path / "out" / f"rank{rank}.pickle").recording is not None
    again = subprocess.run(
        [sys.executable, "-m", "oomdoc", "analyze", "out"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert again.returncode == 1
    assert "ran out of memory first" in again.stdout


WAIT = "sys.stdout.write('up\\n')\nsys.stdout.flush()\ntime.sleep(60)\n"


def started(tmp_path: Path, ranks: int, end: str = WAIT, *options: str) -> "subprocess.Popen[str]":
    """A run whose ranks are all up."""
    command = oomdoc("--nproc-per-node", str(ranks), "-o", "out", *options, str(job(tmp_path, end)))
    run = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert run.stdout is not None
    up = 0
    while up < ranks:
        line = run.stdout.readline()
        assert line, "the run ended before its ranks were up"
        up += line == "up\n"
    return run


def ended(run: "subprocess.Popen[str]") -> tuple[int, str]:
    assert run.stdout is not None
    try:
        text = run.stdout.read()  # with what came in one piece with the lines read before
        return run.wait(timeout=120), text
    finally:
        run.kill()


@pytest.mark.slow
def test_a_killed_rank_loses_nothing_of_the_others(tmp_path: Path) -> None:
    """kill -9: no word of its own; the launcher tells, and its dump of before stands."""
    run = started(tmp_path, 2, WAIT, "--dump", "steps:2")
    os.kill(status(tmp_path / "out", 1)["pid"], signal.SIGKILL)
    code, text = ended(run)
    assert code == 1
    assert "rank 1 was killed" in text
    assert "host memory" in text
    assert (tmp_path / "out" / "rank0.pickle").is_file()
    assert reader.load(tmp_path / "out" / "rank1.step2.pickle").recording is not None
    assert status(tmp_path / "out", 1)["running"] is True


@pytest.mark.slow
def test_sigusr1_dumps_and_sigterm_ends_all(tmp_path: Path) -> None:
    run = started(tmp_path, 2)
    run.send_signal(signal.SIGUSR1)
    dumps = [tmp_path / "out" / f"rank{rank}.pickle" for rank in (0, 1)]
    until = time.monotonic() + 30
    while not all(path.is_file() for path in dumps) and time.monotonic() < until:
        time.sleep(0.1)
    assert all(reader.load(path).recording is not None for path in dumps)
    run.send_signal(signal.SIGTERM)
    code, _ = ended(run)
    assert code in (143, 1)  # torchrun's own: it raises SignalException
    assert [status(tmp_path / "out", rank)["exit_status"] for rank in (0, 1)] == [143, 143]


@pytest.mark.slow
def test_sigterm_reaches_ranks_that_wait_in_a_collective(tmp_path: Path) -> None:
    """Python's handlers do not run there; the dump is made, and the rank ends, all the same."""
    run = started(
        tmp_path,
        2,
        "sys.stdout.write('up\\n')\nsys.stdout.flush()\nif rank == 1:\n    time.sleep(90)\ndist.barrier()\n",
    )
    time.sleep(1)
    began = time.monotonic()
    run.send_signal(signal.SIGTERM)
    ended(run)
    assert time.monotonic() - began < 25  # torchrun kills after 30
    assert [status(tmp_path / "out", rank)["exit_status"] for rank in (0, 1)] == [143, 143]
    assert reader.load(tmp_path / "out" / "rank0.pickle").recording is not None


@pytest.mark.slow
def test_an_elastic_restart_keeps_what_the_first_start_recorded(tmp_path: Path) -> None:
    """The first start fails out of memory, the second trains: both are there, each in its place.

    Without a process group: gloo's own way to one after a restart fails now and then.
    """
    path = job(tmp_path, "")
    path.write_text(
        ALONE + "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and rank == 0:\n    torch.empty(1 << 29)\n"
    )
    done = finished(
        oomdoc("--nproc-per-node", "2", "--max-restarts", "1", "-o", "out", str(path)), tmp_path,
        FAKE_DEVICE_RANK="0", FAKE_DEVICE_BYTES=str(1 << 30),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = json.loads((tmp_path / "out" / "start0" / "rank0.status.json").read_text())
    assert first["out_of_memory"] is True
    assert (tmp_path / "out" / "start0" / "rank0.pickle").is_file()
    assert status(tmp_path / "out", 0)["restarts"] == 1
    assert status(tmp_path / "out", 0)["out_of_memory"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "end", "code"),
    [
        (1, "raise SystemExit(3)\n", 1),
        (1, "", 0),
        (2, "raise ValueError('no')\n", 1),
        (4, "raise SystemExit(3 if rank == 0 else 0)\n", 1),
        (4, "", 0),
    ],
)
def test_exit_statuses_are_those_of_torchrun(tmp_path: Path, ranks: int, end: str, code: int) -> None:
    path = job(tmp_path, LEAVE + end)
    alone = finished(torchrun(f"--nproc-per-node={ranks}", str(path)), tmp_path)
    options = ["--nproc-per-node", str(ranks), "--standalone"]
    done = finished(oomdoc(*options, "-o", "out", str(path)), tmp_path)
    assert alone.returncode == done.returncode == code
    assert len(said(done.stdout)) == ranks
    assert sorted(path.name for path in (tmp_path / "out").glob("rank*.pickle")) == [
        f"rank{r}.pickle" for r in range(ranks)
    ]


@pytest.mark.slow
def test_a_module_runs_under_torchrun_with_dash_m(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(TRAIN + LEAVE)
    alone = finished(torchrun("--nproc-per-node=2", "-m", "pkg.train", "x"), tmp_path)
    done = finished(oomdoc("--nproc-per-node", "2", "-o", "out", "-m", "pkg.train", "x"), tmp_path)
    assert done.returncode == alone.returncode == 0, done.stderr
    assert said(done.stdout) == said(alone.stdout)


LAUNCHERS = {
    "torchrun": {},
    "srun": {"SLURM_PROCID": "{rank}", "SLURM_LOCALID": "{rank}", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7",
             "SLURM_STEP_ID": "1"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
               "PMIX_NAMESPACE": "prterun-1"},
    "deepspeed": {"RANK": "{rank}", "LOCAL_RANK": "{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": "29777", "CROSS_RANK": "0"},
}  # fmt: skip
PLAIN = "import sys, torch\nx = torch.ones(1000)\nprint('ran', sys.argv, flush=True)\n"


@pytest.mark.parametrize(
    "launcher", ["srun", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mpirun", "deepspeed"))]
)
def test_under_another_launcher_each_rank_is_recorded_in_place(tmp_path: Path, launcher: str) -> None:
    """One directory for the job, a file for each rank, one line instead of a report."""
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    runs = [
        subprocess.Popen(
            oomdoc(str(path), "a"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(**{key: value.format(rank=rank) for key, value in LAUNCHERS[launcher].items()}),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    texts = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], texts
    assert [out for out, _ in texts] == [f"ran ['{path}', 'a']\n"] * 2
    [directory] = [each for each in (tmp_path / ".oomdoc").iterdir() if each.name.startswith("plain-")]
    assert (tmp_path / ".oomdoc" / "latest").resolve() == directory.resolve()
    assert {each.name for each in directory.glob("rank*.pickle")} == {"rank0.pickle", "rank1.pickle"}
    assert "oomdoc analyze" in texts[0][1]
    assert "oomdoc analyze" not in texts[1][1]


@pytest.mark.slow
def test_inside_torchrun_it_records_in_place(tmp_path: Path) -> None:
    """`torchrun --no-python oomdoc run train.py`, as `accelerate launch --no_python` and others do it."""
    path = job(tmp_path, "if rank == 1:\n    torch.empty(1 << 28)\n")
    command = torchrun("--nproc-per-node=2", "--no-python", *oomdoc(str(path), "a"))
    done = finished(command, tmp_path, FAKE_DEVICE_RANK="1", FAKE_DEVICE_BYTES=str(1 << 30))
    assert done.returncode == 1
    assert "rank 1 of 2 ran out of GPU memory" in done.stderr
    [directory] = [each for each in (tmp_path / ".oomdoc").iterdir() if each.name.startswith("train-")]
    assert status(directory, 1)["out_of_memory"] is True
    assert {each.name for each in directory.glob("rank*.pickle")} == {"rank0.pickle", "rank1.pickle"}
