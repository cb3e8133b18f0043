"""Starts the process that runs the script under a recorder, and collects what it left.

Virtual: one child, which plays rank `rank` of `nproc_per_node * nnodes`; its environment is what torchrun would set.
CUDA: the child itself for one process, torchrun for several. torch is not imported here.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

OnProgress = Callable[[Mapping[str, Any]], None]
SPEC_FILE = "spec.json"
PROGRESS_FD = "OOMDOC_PROGRESS_FD"  # the fd that the child writes JSON lines to
INTERRUPTED_RECORD = {"interrupted": True}  # such a line: a SIGINT has come to the child
INTERRUPTED = 130
GRACE_SECONDS = 3.0  # in which the child says that it has the SIGINT too, also on a machine under load
DEFAULT_STEPS = 4  # virtual: gradients, optimizer state and the allocator's cache are steady by then


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run of a script.

    `steps`: stop after so many optimizer steps; None = 4 on the virtual GPU, to the end on a real one; 0 = to the end.
    """

    script: str  # a path, or a module's name
    run_dir: Path
    args: tuple[str, ...] = ()
    module: bool = False
    mode: Literal["virtual", "cuda"] = "virtual"
    gpu: str | None = None  # a name of configs/gpus.yaml
    capacity_bytes: int | None = None  # the card's total, instead of its own
    context_bytes: int | None = None  # CUDA context and loaded kernels, instead of the card's own
    target_torch: tuple[int, int] | None = None  # the torch that the virtual GPU stands for; None = the installed one
    steps: int | None = None
    apply: Path | None = None  # an oomdoc.yaml
    nproc_per_node: int = 1
    nnodes: int = 1
    rank: int = 0
    alloc_conf: str | None = None
    python: str = sys.executable

    @property
    def world_size(self) -> int:
        return self.nproc_per_node * self.nnodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """`exit_status` is the child's own, negative for a signal. `failure`: why the run could not be recorded whole."""

    run_dir: Path
    exit_status: int
    snapshots: tuple[Path, ...]  # rank0.pickle, ...
    out_of_memory: bool
    failure: str | None
    steps: int = 0  # optimizer steps that were recorded


def run(spec: RunSpec, on_progress: OnProgress | None = None, *, log: Path | None = None) -> RunResult:
    """Run the script to its end (or to `steps`) and say what came out. Signals to us go to the child as well.

    With `log` the script's own output goes there: of several runs at a time, each has its file.
    """
    run_dir = spec.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    spec_path = run_dir / SPEC_FILE
    spec_path.write_text(json.dumps({key: _plain(value) for key, value in asdict(spec).items()}, indent=1))
    for leftover in (*run_dir.glob("rank*.pickle"), *run_dir.glob("rank*.status.json")):
        leftover.unlink()
    read_fd, write_fd = os.pipe()
    try:
        with contextlib.ExitStack() as opened:
            output = opened.enter_context(log.open("wb")) if log is not None else None
            child = subprocess.Popen(
                command(spec, spec_path),
                env={**os.environ, **environment(spec), PROGRESS_FD: str(write_fd)},
                pass_fds=(write_fd,),
                stdout=output,
                stderr=output,
            )
    finally:
        os.close(write_fd)
    interrupts = Interrupts(child)
    reader = threading.Thread(target=_read_progress, args=(os.fdopen(read_fd), on_progress, interrupts), daemon=True)
    reader.start()
    with _forwarding(child, interrupts):
        exit_status = child.wait()
    if interrupts.terminated:
        exit_status = INTERRUPTED
    reader.join(timeout=1)
    return collect(spec, exit_status)


def command(spec: RunSpec, spec_path: Path) -> list[str]:
    """argv of the child."""
    own = ["oomdoc.recorders.rank", str(spec_path.resolve())]
    if spec.mode == "cuda" and spec.world_size > 1:
        torchrun = ["torch.distributed.run", f"--nproc-per-node={spec.nproc_per_node}", f"--nnodes={spec.nnodes}"]
        return [spec.python, "-m", *torchrun, "-m", *own]
    return [spec.python, "-m", *own]


def environment(spec: RunSpec) -> dict[str, str]:
    """What torchrun sets for the rank that the virtual child plays; nothing for a plain run."""
    extra: dict[str, str] = {}
    if spec.alloc_conf is not None:
        extra["PYTORCH_CUDA_ALLOC_CONF"] = spec.alloc_conf
    if spec.mode == "cuda" or spec.world_size == 1:
        return extra
    local, node = spec.rank % spec.nproc_per_node, spec.rank // spec.nproc_per_node
    return extra | {
        "RANK": str(spec.rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.nproc_per_node),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(spec.nnodes),
        "ROLE_RANK": str(spec.rank),
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def collect(spec: RunSpec, exit_status: int) -> RunResult:
    """What the ranks left in the run directory."""
    statuses = [_status(path) for path in sorted(spec.run_dir.glob("rank*.status.json"))]
    failures = [_sentence(each["failure"]) for each in statuses if each.get("failure")]
    if not statuses:
        failures = [f"the recorder was ended from outside (status {exit_status}) before it could write anything"]
    out_of_memory = any(each.get("out_of_memory") for each in statuses)
    if exit_status == 0:  # torchrun reports its own status; an OOM is never a success
        exit_status = next((each["exit_status"] for each in statuses if each.get("exit_status")), 0)
    return RunResult(
        run_dir=spec.run_dir,
        exit_status=exit_status or (1 if out_of_memory else 0),
        snapshots=tuple(sorted(spec.run_dir.glob("rank*.pickle"), key=_rank_of)),
        out_of_memory=out_of_memory,
        failure=failures[0] if failures else None,
        steps=max((int(each.get("steps", 0)) for each in statuses), default=0),
    )


def _rank_of(path: Path) -> int:
    digits = path.stem.removeprefix("rank")
    return int(digits) if digits.isdigit() else 0


def _status(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"failure": {"message": f"{path} cannot be read"}}
    return loaded if isinstance(loaded, dict) else {}


def _sentence(failure: Mapping[str, Any]) -> str:
    where = f" at {failure['file']}:{failure['line']}" if failure.get("file") else ""
    hint = f"\n{failure['hint']}" if failure.get("hint") else ""
    return f"{failure.get('message', 'the run could not be recorded')}{where}{hint}"


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _read_progress(pipe: IO[str], on_progress: OnProgress | None, interrupts: "Interrupts") -> None:
    with pipe:
        for line in pipe:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record == INTERRUPTED_RECORD:
                    interrupts.received.set()
                elif on_progress is not None and isinstance(record, dict):
                    on_progress(record)


class Interrupts:
    """SIGINT to us. From a terminal it goes to the child as well, which says so; if it does not, we pass it on.

    A script that cleans up after the first one is not disturbed by the same one twice. A second one terminates it.
    """

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self.child = child
        self.received = threading.Event()
        self.terminated = False
        self._pending: threading.Timer | None = None

    def handle(self, number: int, _: object) -> None:
        if self._pending is None:
            self._pending = threading.Timer(GRACE_SECONDS, self._pass_on)
            self._pending.daemon = True
            self._pending.start()
        else:
            self.terminated = True
            _signal(self.child, signal.SIGTERM)

    def _pass_on(self) -> None:
        if not self.received.is_set():
            _signal(self.child, signal.SIGINT)

    def cancel(self) -> None:
        if self._pending is not None:
            self._pending.cancel()


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


@contextmanager
def _forwarding(child: "subprocess.Popen[bytes]", interrupts: Interrupts) -> Iterator[None]:
    """SIGTERM and SIGHUP go on to the child; SIGINT where it has not come to it."""

    def forward(number: int, _: object) -> None:
        _signal(child, number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: Sequence[tuple[signal.Signals, Any]] = (
        (signal.SIGTERM, forward),
        (signal.SIGHUP, forward),
        (signal.SIGINT, interrupts.handle),
    )
    previous = {number: signal.signal(number, handler) for number, handler in handlers}
    try:
        yield
    finally:
        interrupts.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)
