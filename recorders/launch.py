"""Starts the process that runs the script under a recorder, and waits for it.

Virtual: one child, which plays rank `rank` of `nproc_per_node * nnodes`; its environment is what torchrun would set.
With `others` a child more for each rank that turns out to differ from it, as the stages of a pipeline do.
CUDA: the child itself for one process, torchrun for several. Where another launcher has started us as one rank of many
(`placement`), the child takes over that rank. torch is not imported here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from ..errors import OomdocError
from . import channel
from .collecting import RunResult, collect
from .family import DRAINED, Family
from .interrupting import Interrupts, forwarding
from .mailbox import PEER
from .overseer import Overseer
from .placement import placement

OnProgress = Callable[[Mapping[str, Any]], None]
SPEC_FILE = "spec.json"
INTERRUPTED = 130
DEFAULT_STEPS = 4  # virtual: gradients, optimizer state and the allocator's cache are steady by then
_MEETING = ("--rdzv", "--master", "--standalone", "--nnodes", "--node-rank")
Keep = Literal["auto", "all", "failed", "none"]

__all__ = ["DEFAULT_STEPS", "RunResult", "RunSpec", "collect", "command", "environment", "run"]


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
    others: bool = False  # also the ranks that differ from this one: those it exchanges messages with
    alloc_conf: str | None = None
    largest_batch: bool = False  # training also meets the largest batch that its DataLoader can yield
    python: str = sys.executable
    torchrun: tuple[str, ...] = ()  # further options for torchrun, as it takes them
    in_place: bool = False  # another launcher has made this process one rank of many
    stacks: Literal["python", "all"] = "python"
    max_entries: int | None = None  # of the history, per device
    dump: str | None = None  # further dumps, as `triggers.parse` reads it
    keep: Keep = "auto"  # which ranks of a large world keep their snapshot
    upload: str | None = None  # an fsspec URL that the run directory is copied to
    watch: bool = False  # warn before the memory is full
    warn_at: float | None = None  # ... from this share of the card on

    @property
    def world_size(self) -> int:
        return self.nproc_per_node * self.nnodes

    @property
    def elastic(self) -> bool:
        """torchrun starts the ranks."""
        return self.mode == "cuda" and not self.in_place and (self.world_size > 1 or bool(self.torchrun))


def run(spec: RunSpec, on_progress: OnProgress | None = None, *, log: Path | None = None) -> RunResult:
    """Run the script to its end (or to `steps`) and say what came out. Signals to us go to the child as well.

    With `log` the script's own output goes there: of several runs at a time, each has its file.
    """
    spec_path = prepare(spec)
    overseer = Overseer(spec.run_dir, on_progress)
    interrupts: Interrupts | None = None

    def on_record(record: Mapping[str, Any]) -> None:
        if interrupts is not None and record.get("interrupted"):
            interrupts.received.set()
        elif family is not None and PEER in record:
            family.ask(int(record[PEER]))
        elif family is not None and record == DRAINED:
            family.drained.set()
        elif not record.get("interrupted") and (family is None or record.get("rank") == spec.rank):
            overseer.heard(record)

    def start(rank: int) -> "subprocess.Popen[bytes]":
        env = {**os.environ, **environment(replace(spec, rank=rank)), **variables}
        return subprocess.Popen(command(spec, spec_path), env=env, stdout=output, stderr=output)

    family = Family(spec.run_dir, spec.rank, start) if spec.others else None
    with channel.listening(on_record) as variables, _output(log) as output:
        child = start(spec.rank)
        interrupts = Interrupts(child)
        watching = overseer.sampling() if spec.mode == "cuda" else nullcontext()
        with forwarding(child, interrupts, overseer.ask_for_dumps), watching:
            exit_status = child.wait() if family is None else family.wait(child, variables.get(channel.VARIABLE))
    if interrupts.terminated:
        exit_status = INTERRUPTED
    result = collect(spec, exit_status, overseer)
    if spec.mode == "cuda":
        overseer.conclude(result.ended, spec.upload)
    return result


def _output(log: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    return nullcontext() if log is None else log.open("wb")


def prepare(spec: RunSpec) -> Path:
    """The run directory, without what an earlier run left in it; -> the file that tells the ranks what to do."""
    placed = placement() if spec.in_place else None
    path = spec.run_dir / (SPEC_FILE if placed is None else f"spec{placed.rank}.json")
    try:
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({key: _plain(value) for key, value in asdict(spec).items()}, indent=1))
        if placed is None and spec.nnodes == 1:  # else other ranks may have begun: each clears its own
            for leftover in (*spec.run_dir.glob("rank*.*"), *spec.run_dir.glob("node-*.json")):
                leftover.unlink()
    except OSError as error:
        raise OomdocError(
            f"cannot write to {spec.run_dir}: {error.strerror}; name another directory with -o"
        ) from error
    return path


def command(spec: RunSpec, spec_path: Path) -> list[str]:
    """argv of the child."""
    own = ["oomdoc.recorders.rank", str(spec_path.resolve())]
    if spec.elastic:
        torchrun = ["torch.distributed.run", f"--nproc-per-node={spec.nproc_per_node}"]
        if not any(option.startswith("--nnodes") for option in spec.torchrun):
            torchrun.append(f"--nnodes={spec.nnodes}")
        if spec.nnodes == 1 and not any(option.startswith(_MEETING) for option in spec.torchrun):
            torchrun.append("--standalone")  # a free port: torchrun's own default is one for the whole machine
        return [spec.python, "-m", *torchrun, *spec.torchrun, "-m", *own]
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


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
