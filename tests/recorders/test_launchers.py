"""Real launchers around `oomdoc run`, and inside a script under it: all ends as it does without oomdoc.

The table is `LAUNCHERS` by `test_...`: exit status, arguments, `__file__`, sys.path, -m, SIGTERM. Each rank's GPU is
the model of one in `fake_device`.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import one_node_slurm
import pytest
from oomdoc.snapshots import reader

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PYTHON = sys.executable
PATHS = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])  # torchrun stands beside it, activated or not
RECORDED = (PYTHON, "-m", "oomdoc", "run", "--real")
SCRIPT = """\
import os, sys, time
ours = sorted(name for name in os.environ if name.startswith("OOMDOC") and name != "OOMDOC_ACCELERATOR")
words = f"rank argv={sys.argv} file={__file__} name={__name__} path={sys.path[0]} main={__spec__ is None} {ours}\\n"
sys.stdout.write(words)  # in one piece: ranks share the pipe
sys.stdout.flush()
if sys.argv[1] == "wait":
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """`start` begins 2 ranks of a Python script, `start_other` (with `other`) 2 ranks of any command."""

    start: tuple[str, ...]
    start_other: tuple[str, ...]
    module: tuple[str, ...] = ("-m",)  # between `start` and a module's name
    tool: str = ""  # an executable that it needs
    package: str = ""
    whole_group: bool = False  # SIGTERM to it alone leaves the ranks behind
    cancel: tuple[str, ...] = ()  # its own command for SIGTERM; one to srun itself is SIGKILL to the ranks


TORCHRUN = ("--standalone", "--nproc-per-node=2")
ACCELERATE = ("--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
DEEPSPEED = ("--num_accelerators=2", "--no_local_rank")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "odls_base_sigkill_timeout", "20", "-n", "2")
SRUN = ("srun", "--overcommit", "--job-name=ranks", "-n", "2")
LAUNCHERS = {
    "torchrun": Launcher(
        start=("torchrun", *TORCHRUN), start_other=("torchrun", *TORCHRUN, "--no-python"), tool="torchrun"
    ),
    "torch.distributed.run": Launcher(
        start=(PYTHON, "-m", "torch.distributed.run", *TORCHRUN),
        start_other=(PYTHON, "-m", "torch.distributed.run", *TORCHRUN, "--no-python"),
    ),
    "accelerate": Launcher(
        start=("accelerate", "launch", "--main_process_port=0", *ACCELERATE),
        start_other=("accelerate", "launch", "--main_process_port=0", *ACCELERATE, "--no_python"),
        module=("--module",),
        tool="accelerate",
    ),
    "deepspeed": Launcher(
        start=(PYTHON, "-m", "deepspeed.launcher.runner", *DEEPSPEED),
        start_other=(PYTHON, "-m", "deepspeed.launcher.runner", *DEEPSPEED, "--no_python"),
        module=("--module",),
        package="deepspeed",
        whole_group=True,
    ),
    "mpirun": Launcher(start=(*MPIRUN, PYTHON), start_other=MPIRUN, tool="mpirun"),
    "srun": Launcher(
        start=(*SRUN, PYTHON), start_other=SRUN, tool="srun", cancel=("scancel", "--name=ranks", "--signal=TERM")
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """Slurm's daemons, started for the first test that needs them."""
    why = one_node_slurm.missing()
    if why is not None:
        pytest.skip(why)
    with ExitStack() as stack:
        try:
            yield stack.enter_context(one_node_slurm.running())
        except TimeoutError as error:
            pytest.skip(f"Slurm does not start here: {error}")


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> tuple[Launcher, dict[str, str]]:
    """A launcher of this machine, and the variables that its ranks need; skips where there is none."""
    found = LAUNCHERS[request.param]
    if found.tool and shutil.which(found.tool, path=PATHS) is None:
        pytest.skip(f"{found.tool} is not installed")
    if found.package and importlib.util.find_spec(found.package) is None:
        pytest.skip(f"{found.package} is not installed")
    if request.param == "srun":
        return found, request.getfixturevalue("cluster")
    return found, {"DS_ACCELERATOR": "cpu"}


def environment(more: Mapping[str, str]) -> dict[str, str]:
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    mine = {"OOMDOC_ACCELERATOR": "fake_device:FakeDevice", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PATH": PATHS}
    return {**os.environ, **mine, "PYTHONPATH": os.pathsep.join(paths), **more}


def ended(command: tuple[str, ...], folder: Path, more: Mapping[str, str]) -> tuple[int, list[str]]:
    """The status, and what the ranks said."""
    done = subprocess.run(
        command, cwd=folder, env=environment(more), capture_output=True, text=True, timeout=180
    )  # fmt: skip
    said = sorted(re.findall(r"rank argv=.*", done.stdout))
    assert said, done.stderr
    return done.returncode, said


def recorded(folder: Path) -> dict[str, int]:
    """By the name of each snapshot of the one run directory: the status that its rank left."""
    [run_dir] = [each for each in (folder / ".oomdoc").iterdir() if each.is_dir() and not each.is_symlink()]
    found = {}
    for path in run_dir.glob("rank*.pickle"):
        assert reader.load(path).recording is not None
        found[path.name] = int(json.loads(path.with_suffix(".status.json").read_text())["exit_status"])
    return found


@pytest.mark.parametrize("status", [0, 3])
def test_in_place_each_rank_ends_as_without_oomdoc(
    tmp_path: Path, launcher: tuple[Launcher, dict[str, str]], status: int
) -> None:
    """`LAUNCHER oomdoc run train.py`: one directory for the job, a snapshot of each rank."""
    tool, more = launcher
    (tmp_path / "train.py").write_text(SCRIPT)
    alone = ended((*tool.start, "train.py", str(status), "--lr", "-o"), tmp_path, more)
    inside = ended((*tool.start_other, *RECORDED, "train.py", str(status), "--lr", "-o"), tmp_path, more)
    assert inside == alone
    assert len(alone[1]) == 2
    assert recorded(tmp_path) == {"rank0.pickle": status, "rank1.pickle": status}


def test_in_place_a_module_runs_with_dash_m(tmp_path: Path, launcher: tuple[Launcher, dict[str, str]]) -> None:
    tool, more = launcher
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text(SCRIPT)
    alone = ended((*tool.start, *tool.module, "pkg.train", "0", "x"), tmp_path, more)
    inside = ended((*tool.start_other, *RECORDED, "-m", "pkg.train", "0", "x"), tmp_path, more)
    assert inside == alone
    assert recorded(tmp_path) == {"rank0.pickle": 0, "rank1.pickle": 0}


def test_in_place_sigterm_of_the_launcher_ends_all_and_loses_nothing(
    tmp_path: Path, launcher: tuple[Launcher, dict[str, str]]
) -> None:
    tool, more = launcher
    (tmp_path / "train.py").write_text(SCRIPT)
    statuses = []
    for command in ((*tool.start, "train.py", "wait"), (*tool.start_other, *RECORDED, "train.py", "wait")):
        run = subprocess.Popen(
            command, cwd=tmp_path, env=environment(more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert run.stdout is not None
        up = 0
        while up < 2:
            line = run.stdout.readline()
            assert line, "the run ended before its ranks were up"
            up += line.startswith("rank argv=")
        if tool.cancel:
            subprocess.run(tool.cancel, env=environment(more), check=True)
        elif tool.whole_group:
            os.killpg(run.pid, signal.SIGTERM)
        else:
            run.send_signal(signal.SIGTERM)
        try:
            run.communicate(timeout=60)
        finally:
            run.kill()
        statuses.append(run.returncode)
    assert statuses[1] == statuses[0]
    expected = {"rank0.pickle": 143, "rank1.pickle": 143}
    until = time.monotonic() + 30  # not every launcher waits for its ranks
    while recorded(tmp_path) != expected and time.monotonic() < until:
        time.sleep(0.2)
    assert recorded(tmp_path) == expected


def test_a_recorded_script_starts_a_launcher_as_without_oomdoc(
    tmp_path: Path, launcher: tuple[Launcher, dict[str, str]]
) -> None:
    """`oomdoc run sweep.py`, which starts the ranks itself: they see nothing of oomdoc, and its status is theirs."""
    tool, more = launcher
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [*tool.start, "train.py", "3", "a b"]
    (tmp_path / "sweep.py").write_text(f"import subprocess, sys\nsys.exit(subprocess.run({words!r}).returncode)\n")
    alone = ended((PYTHON, "sweep.py"), tmp_path, more)
    inside = ended((*RECORDED, "sweep.py"), tmp_path, more)
    assert inside == alone
    assert len(alone[1]) == 2
    assert list(recorded(tmp_path)) == ["rank0.pickle"]


SPAWNS = {
    "torch.multiprocessing.spawn": "import torch.multiprocessing as mp\nmp.spawn(work, args=(STATUS,), nprocs=2)\n",
    "multiprocessing": (
        "import multiprocessing as mp\nmp.set_start_method('spawn')\n"
        "ranks = [mp.Process(target=work, args=(i, STATUS)) for i in range(2)]\n"
        "[rank.start() for rank in ranks]\n[rank.join() for rank in ranks]\nsys.exit(max(r.exitcode for r in ranks))\n"
    ),
    "fork": (
        "import multiprocessing as mp\n"
        "ranks = [mp.get_context('fork').Process(target=work, args=(i, STATUS)) for i in range(2)]\n"
        "[rank.start() for rank in ranks]\n[rank.join() for rank in ranks]\nsys.exit(max(r.exitcode for r in ranks))\n"
    ),
    "accelerate.debug_launcher": (
        "from accelerate import debug_launcher\ndebug_launcher(work, args=(0, STATUS), num_processes=2)\n"
    ),
    "elastic_launch": (
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend='c10d',\n"
        "                      rdzv_endpoint='localhost:0', start_method='spawn', max_restarts=0)\n"
        "elastic_launch(config, work)(0, STATUS)\n"
    ),
}


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("how", SPAWNS)
def test_a_recorded_script_spawns_as_without_oomdoc(tmp_path: Path, how: str, status: int) -> None:
    text = (
        "import os, sys\n\n\ndef work(rank, status):\n"
        "    sys.stdout.write(f'rank argv={sys.argv} file={__file__} main={__name__}\\n')\n    sys.stdout.flush()\n"
        "    sys.exit(status)\n\n\n"
        f"if __name__ == '__main__':\n    STATUS = {status}\n"
        + "".join(f"    {line}\n" for line in SPAWNS[how].splitlines())
    )
    (tmp_path / "train.py").write_text(text)
    alone = ended((PYTHON, "train.py", "x"), tmp_path, {})
    inside = ended((*RECORDED, "train.py", "x"), tmp_path, {})
    assert inside == alone
    assert len(alone[1]) == 2
