"""What a rank has written is never lost: a full disk, a read-only folder, kill -9, a script with signals of its own."""

import json
import os
import signal
import subprocess
import sys
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


def started(tmp_path: Path, end: str, *options: str) -> "subprocess.Popen[str]":
    (tmp_path / "train.py").write_text(SCRIPT + end)
    command = [sys.executable, "-m", "oomdoc", "run", "--real", "-o", "out", *options, "train.py"]
    run = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    return run


def status(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "out" / "rank0.status.json").read_text())
    return content


def test_kill_9_is_told_from_running_out_of_gpu_memory(tmp_path: Path) -> None:
    run = started(tmp_path, "time.sleep(60)\n")
    os.kill(status(tmp_path)["pid"], signal.SIGKILL)
    text = run.communicate(timeout=60)[0]
    assert run.returncode == 137
    assert "the script was killed by SIGKILL: from outside, and not for memory as far as can be seen (it held " in text


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
    text = run.communicate(timeout=60)[0]
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
    text = run.communicate(timeout=60)[0]
    assert "went on" in text
    assert "was not written: No such file or directory" in text


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
