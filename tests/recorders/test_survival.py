"""What a rank has written is never lost: a full disk, a read-only folder, kill -9, a script with signals of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from oomdoc.recorders.collecting import collect
from oomdoc.recorders.dumping import Dumper
from oomdoc.recorders.launch import RunSpec
from oomdoc.recorders.outcome import Outcome, Whereabouts
from oomdoc.recorders.recorder import Taken
from oomdoc.recorders.summary import EXTREMES, Summaries
from oomdoc.snapshots import reader, writer

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ, "OOMDOC_ACCELERATOR": "fake_device:FakeDevice", "NO_COLOR": "1",
    "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
}  # fmt: skip
SCRIPT = "import sys, time, torch\nx = torch.ones(1000)\nsys.stdout.write('up\\n')\nsys.stdout.flush()\n"


def started(tmp_path: Path, end: str, *options: str, **more: str) -> "subprocess.Popen[str]":
    (tmp_path / "train.py").write_text(SCRIPT + end)
    command = [sys.executable, "-m", "oomdoc", "run", "--real", "-o", "out", *options, "train.py"]
    run = subprocess.Popen(
        command, cwd=tmp_path, env={**ENVIRONMENT, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    return run


def rest(run: "subprocess.Popen[str]") -> str:
    """What it says until its end, also what came in one piece with what was read before."""
    assert run.stdout is not None
    text = run.stdout.read()
    run.wait(timeout=60)
    return text


def status(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "out" / "rank0.status.json").read_text())
    return content


def test_kill_9_is_told_from_running_out_of_gpu_memory(tmp_path: Path) -> None:
    run = started(tmp_path, "time.sleep(60)\n")
    os.kill(status(tmp_path)["pid"], signal.SIGKILL)
    text = rest(run)
    assert run.returncode == 137
    assert "the script was killed by SIGKILL: from outside, and not for memory as far as can be seen" in text


@pytest.mark.slow
def test_a_script_with_a_sigint_handler_of_its_own_gets_it_once(tmp_path: Path) -> None:
    """To the whole group, as from a terminal; longer than the launcher waits to hear of it."""
    own = (
        "import signal\ncount = []\nsignal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        "assert signal.getsignal(signal.SIGINT).__name__ == '<lambda>'\n"
        "sys.stdout.write('set\\n')\nsys.stdout.flush()\n"
        "until = time.monotonic() + 5\nwhile time.monotonic() < until: time.sleep(0.05)\nprint('got', len(count))\n"
    )
    run = started(tmp_path, own)
    assert run.stdout is not None
    assert run.stdout.readline() == "set\n"
    os.killpg(run.pid, signal.SIGINT)
    text = rest(run)
    assert "got 1\n" in text
    assert run.returncode == 0


class Stored:
    """A recorder whose snapshot is one that was recorded before."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self, argv: Any) -> Any:
        return Taken(reader.load(self.path))


@pytest.fixture
def dumper(tmp_path: Path) -> Dumper:
    from oomdoc.recorders.launch import run

    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(1000, device='cuda')\n")
    spec = RunSpec(script=str(tmp_path / "train.py"), run_dir=tmp_path / "out", gpu="t4")
    run(spec)
    os.rename(tmp_path / "out" / "rank0.pickle", tmp_path / "stored.pickle")
    recorder: Any = Stored(tmp_path / "stored.pickle")
    return Dumper(spec, recorder, 0, dict)


def test_a_full_disk_keeps_the_file_of_before(
    dumper: Dumper, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dumper.dump() is not None
    before = dumper.path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.pickle, "dump", full)
    assert dumper.dump() is None
    assert dumper.path.read_bytes() == before
    assert [path.name for path in dumper.path.parent.iterdir() if path.name.startswith(".")] == []
    assert "rank0.pickle was not written: No space left on device; the file of before stands" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_file_system_that_is_really_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from oomdoc.recorders.uploading import write_text

    (tmp_path / f".a.json.{os.getpid()}").symlink_to("/dev/full")
    (tmp_path / "a.json").write_text("before")
    assert not write_text(tmp_path / "a.json", "after")
    assert (tmp_path / "a.json").read_text() == "before"
    assert "No space left on device" in capsys.readouterr().err


def test_a_read_only_folder_is_told_before_anything_runs(tmp_path: Path, oomdoc: Callable[..., Any]) -> None:
    """As root a mode is no obstacle: a file in the place of the folder is."""
    (tmp_path / "train.py").write_text("print('ran')\n")
    (tmp_path / "out").write_text("")
    done = oomdoc("run", "--gpu", "t4", "-o", "out/run", "train.py")
    assert done.returncode == 2
    assert "cannot make out/run: Not a directory; name another directory with -o" in done.stderr
    assert "ran" not in done.stdout


def test_a_folder_that_becomes_unwritable_does_not_end_the_script(tmp_path: Path) -> None:
    run = started(tmp_path, "import os\nos.rename('out', 'gone')\nprint('went on')\n")
    text = rest(run)
    assert "went on" in text
    assert "was not written: No such file or directory" in text


IN_THE_MIDST = """\
import ctypes, os, pickle, signal
write = pickle.dump
def slow(raw, file, **options):
    pickle.dump = write
    os.kill(os.getpid(), signal.SIGTERM)
    {pause}
    write(raw, file, **options)
pickle.dump = slow
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
while True:
    model(torch.ones(8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "pause",
    [
        "time.sleep(0.5)",
        pytest.param("ctypes.CDLL(None).sleep(4)", marks=pytest.mark.slow),  # no handler of Python's runs in there
    ],
)
def test_sigterm_in_the_midst_of_a_dump_waits_for_it(tmp_path: Path, pause: str) -> None:
    run = started(tmp_path, IN_THE_MIDST.format(pause=pause), "--dump", "steps:2")
    rest(run)
    assert run.returncode == 143
    assert status(tmp_path)["exit_status"] == 143
    for name in ("rank0.step2.pickle", "rank0.pickle"):
        assert reader.load(tmp_path / "out" / name).recording is not None
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_sigterm_within_a_finalizer_ends_the_script_all_the_same(tmp_path: Path) -> None:
    """No error comes out of `__del__`: that of the handler is lost there."""
    end = (
        "import os, signal\nclass Held:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.1)\nheld = Held()\ndel held\nprint('still there')\nsys.stdout.flush()\ntime.sleep(60)\n"
    )
    run = started(tmp_path, end)
    assert "still there" in rest(run)
    assert run.returncode == 143


BROKEN = """\
import pickle
write = pickle.dump
def broken(raw, file, **options):
    pickle.dump = write
    raise RuntimeError("of the recorder")
pickle.dump = broken
"""
STEPS = """\
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(8)).sum().backward()
    optimizer.step()
print("trained")
"""


def test_a_fault_of_the_recorder_costs_the_script_nothing(tmp_path: Path) -> None:
    """In a dump in the midst; the one at the end is there."""
    run = started(tmp_path, BROKEN + STEPS, "--dump", "steps:2")
    text = rest(run)
    assert run.returncode == 0
    assert "trained" in text
    assert "a fault of oomdoc itself, the script goes on: RuntimeError: of the recorder" in text
    assert {path.name for path in (tmp_path / "out").glob("*.pickle")} == {"rank0.pickle"}


def test_a_fault_of_the_last_dump_leaves_the_scripts_own_status(tmp_path: Path) -> None:
    run = started(tmp_path, BROKEN + "sys.exit(5)\n")
    text = rest(run)
    assert run.returncode == 5
    assert "a fault of oomdoc itself" in text
    assert status(tmp_path)["exit_status"] == 5


def test_a_fault_of_the_dump_at_an_oom_leaves_the_error_as_it_is(tmp_path: Path) -> None:
    caught = "try:\n    torch.empty(1 << 28)\nexcept torch.OutOfMemoryError as error:\n    print('caught', error)\n"
    run = started(tmp_path, BROKEN + caught, FAKE_DEVICE_BYTES=str(1 << 30))
    text = rest(run)
    assert "a fault of oomdoc itself" in text
    assert "caught CUDA out of memory. Tried to allocate" in text


RUNS = "import subprocess, sys, torch; subprocess.run([sys.executable, '-c', ''], check=True)"
ANOTHER_USER = ("--reuid=65534", "--regid=65534", "--clear-groups")
WITHOUT_POWER = ("--inh-caps=-dac_override,-dac_read_search", "--bounding-set=-dac_override,-dac_read_search")


def held_to_modes() -> list[str]:
    """Words before a command to which a folder's mode applies: as nobody, or as a root without its power over it."""
    if os.getuid():
        return []
    for options in (ANOTHER_USER, WITHOUT_POWER):
        words = ["setpriv", *options]
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*words, sys.executable, "-c", RUNS], capture_output=True).returncode == 0:
                return words
    pytest.skip("as root a folder's mode is no obstacle, and setpriv cannot run this Python without that power")


@pytest.mark.slow
def test_a_folder_that_becomes_read_only_by_its_mode(tmp_path: Path) -> None:
    """The dump of before stands, the script goes on to its own status; a new run is refused before it starts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(
            SCRIPT + "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\nos.chmod('out', 0o555)\n"
            "y = torch.ones(5000)\nprint('went on')\nsys.exit(3)\n"
        )
        for each in (folder, folder / "train.py"):
            os.chmod(each, 0o777)
        command = [*held_to_modes(), sys.executable, "-m", "oomdoc", "run", "--real", "-o", "out", "train.py"]
        run = subprocess.run(command, cwd=folder, env={**ENVIRONMENT, "HOME": name}, capture_output=True, text=True)
        assert run.returncode == 3, run.stderr
        assert "went on" in run.stdout
        assert "rank0.pickle was not written: Permission denied; the file of before stands" in run.stderr
        assert reader.load(folder / "out" / "rank0.pickle").recording is not None
        again = subprocess.run(command, cwd=folder, env={**ENVIRONMENT, "HOME": name}, capture_output=True, text=True)
        assert again.returncode == 2
        assert "cannot write to out: Permission denied; name another directory with -o" in again.stderr
        assert "up" not in again.stdout


@pytest.mark.slow
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """A file system of 1 MiB: the dump of before stands, the script goes on to its own status."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        more = "for i in range(30000):\n    y = torch.ones(7)\n"
        end = f"import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\n{more}print('went on')\nsys.exit(3)\n"
        run = started(tmp_path, end, "-o", "disk/out")
        text = rest(run)
        assert run.returncode == 3, text
        assert "went on" in text
        assert "rank0.pickle was not written: No space left on device; the file of before stands" in text
        assert reader.load(disk / "out" / "rank0.pickle").recording is not None
        assert [path.name for path in (disk / "out").iterdir() if path.name.startswith(".")] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_url_gets_a_copy_and_is_read_like_a_folder(tmp_path: Path) -> None:
    """fsspec's own file system stands for any other; one that is not there costs a line, not the run."""
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(1000)\n")
    url = f"file://{tmp_path}/bucket/run"
    words = [sys.executable, "-m", "oomdoc", "run", "--real", "-o"]
    done = subprocess.run([*words, url, "train.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"rank0.pickle", "rank0.status.json"} <= {path.name for path in (tmp_path / "bucket" / "run").iterdir()}
    read = [sys.executable, "-m", "oomdoc", "analyze", url]
    shown = subprocess.run(read, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "3.9 KiB" in shown.stdout
    lost = subprocess.run(
        [*words, "nope://x/y", "train.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert lost.returncode == 0
    assert "rank0.pickle was not copied to nope://x/y" in lost.stderr


@pytest.mark.parametrize(
    ("killed_by", "kills", "peak", "words"),
    [
        (-9, 1, 10, "the kernel's out-of-memory killer ended it: the host ran out of memory, not the GPU"),
        (137, 0, 95, "probably for host memory, not the GPU's"),
        (-9, 0, 10, "from outside, and not for memory"),
        (-7, 0, 10, "/dev/shm"),
        (-11, 0, 10, "was killed by SIGSEGV"),
        (3, 0, 10, "the script ended with status 3 and left no word"),
    ],
)
def test_how_a_process_was_killed(tmp_path: Path, killed_by: int, kills: int, peak: int, words: str) -> None:
    (tmp_path / "rank0.status.json").write_text(Outcome(exit_status=0, running=True).text(Whereabouts(pid=7)))
    overseer: Any = SimpleNamespace(peak_rss={7: peak}, host_limit=100, kernel_kills=lambda: kills)
    result = collect(RunSpec(script="a.py", run_dir=tmp_path, mode="cuda"), killed_by, overseer)
    assert len(result.ended) == 1
    assert words in result.ended[0]
    assert not result.out_of_memory


def test_a_large_world_keeps_failures_and_extremes(tmp_path: Path, dumper: Dumper, monkeypatch: Any) -> None:
    """Each rank decides for itself, by a small file; a snapshot that is an extreme no more is let go."""
    snapshot = reader.load(tmp_path / "stored.pickle")
    folder = tmp_path / "world"
    folder.mkdir()
    kept = []
    for rank, held in enumerate([50, 40, 60, 55, 45, 70, 30]):
        spec = RunSpec(script="a.py", run_dir=folder, mode="cuda", nproc_per_node=4096)
        seat: Any = SimpleNamespace(rank=rank, world_size=4096)
        summaries = Summaries(spec, seat)
        monkeypatch.setattr(
            summaries, "_summary", lambda *_, rank=rank, held=held: SimpleNamespace(rank=rank, held_bytes=held)
        )
        if summaries.keeps(snapshot, Outcome(exit_status=0)):
            kept.append(rank)
            (folder / f"rank{rank}.pickle").write_text("x")
        assert summaries.keeps(snapshot, Outcome(exit_status=1, out_of_memory=True))
    assert kept == [0, 1, 2, 5, 6]
    assert {path.name for path in folder.glob("*.pickle")} == {"rank5.pickle", "rank6.pickle"}
    assert json.loads((folder / EXTREMES).read_text()) == {"highest": [5, 70], "lowest": [6, 30]}
