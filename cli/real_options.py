"""The options of `run` for real GPUs: what torchrun takes, what is dumped when, and what is done while the job runs."""

import shlex
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OomdocError

if TYPE_CHECKING:
    from .options import JobOptions

TORCHRUN, RECORDING, WATCHING = "torchrun, with --real", "Recording, with --real", "While the job runs"


class StackKind(str, Enum):
    PYTHON = "python"
    ALL = "all"


class Kept(str, Enum):
    AUTO = "auto"
    ALL = "all"
    FAILED = "failed"
    NONE = "none"


def _torchrun(name: str, metavar: str, help: str) -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=help, rich_help_panel=TORCHRUN, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealOptions:
    rdzv_backend: Annotated[str | None, _torchrun("rdzv-backend", "NAME", "How nodes find each other: c10d, etcd.")] = (
        None
    )
    rdzv_endpoint: Annotated[str | None, _torchrun("rdzv-endpoint", "HOST:PORT", "Where they meet.")] = None
    rdzv_id: Annotated[str | None, _torchrun("rdzv-id", "ID", "The job, the same on all nodes.")] = None
    rdzv_conf: Annotated[str | None, _torchrun("rdzv-conf", "K=V,...", "Settings of the rendezvous.")] = None
    standalone: Annotated[
        bool, typer.Option("--standalone", help="A rendezvous of this node alone.", rich_help_panel=TORCHRUN)
    ] = False
    max_restarts: Annotated[int | None, _torchrun("max-restarts", "N", "Start the ranks anew up to N times.")] = None
    monitor_interval: Annotated[
        float | None, _torchrun("monitor-interval", "SECONDS", "Between looks at the ranks.")
    ] = None
    node_rank: Annotated[int | None, _torchrun("node-rank", "N", "This node among the nodes.")] = None
    master_addr: Annotated[str | None, _torchrun("master-addr", "HOST", "Node 0.")] = None
    master_port: Annotated[int | None, _torchrun("master-port", "PORT", "Its port.")] = None
    local_addr: Annotated[str | None, _torchrun("local-addr", "HOST", "This node, as others reach it.")] = None
    role: Annotated[str | None, _torchrun("role", "NAME", "The ranks' role.")] = None
    torchrun: Annotated[
        str | None,
        _torchrun("torchrun", "OPTIONS", "Further options in one text: '--nnodes=1:4 --tee=3 --nproc-per-node=gpu'."),
    ] = None
    stacks: Annotated[
        StackKind,
        typer.Option("--stacks", help="`all` adds C++ frames: exacter, and slow to dump.", rich_help_panel=RECORDING),
    ] = StackKind.PYTHON
    max_entries: Annotated[
        int | None,
        typer.Option(
            "--max-entries", metavar="N", min=1_000, help="Events kept for each device.", rich_help_panel=RECORDING
        ),
    ] = None
    dump: Annotated[
        list[str] | None,
        typer.Option(
            "--dump",
            metavar="WHEN",
            help="Dump besides at the end: steps:3,10, requests:100 or every:300s. SIGUSR1 asks for one too.",
            rich_help_panel=RECORDING,
        ),
    ] = None
    keep: Annotated[
        Kept,
        typer.Option(
            "--keep",
            help="Which ranks keep a whole snapshot; auto: all of up to 16, else those that failed and the extremes.",
            rich_help_panel=RECORDING,
        ),
    ] = Kept.AUTO
    live: Annotated[
        bool, typer.Option("--live", help="Show the memory of each GPU while it runs.", rich_help_panel=WATCHING)
    ] = False
    warn_at: Annotated[
        str | None,
        typer.Option(
            "--warn-at",
            metavar="SHARE",
            help="Warn when so much of a card is in use, such as 92%; and of leaks and fragmentation.",
            rich_help_panel=WATCHING,
        ),
    ] = None
    on_warn: Annotated[
        str | None,
        typer.Option(
            "--on-warn",
            metavar="CMD",
            help="Run CMD at each warning, its facts as JSON on stdin.",
            rich_help_panel=WATCHING,
        ),
    ] = None
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics", metavar="FILE", help="Keep a Prometheus text file current (textfile collector).",
            rich_help_panel=WATCHING,
        ),
    ] = None  # fmt: skip

    def torchrun_options(self) -> tuple[str, ...]:
        """As torchrun takes them. Raises OomdocError for those that would run something else than a recorded script."""
        named: list[tuple[str, object]] = [
            ("rdzv-backend", self.rdzv_backend),
            ("rdzv-endpoint", self.rdzv_endpoint),
            ("rdzv-id", self.rdzv_id),
            ("rdzv-conf", self.rdzv_conf),
            ("max-restarts", self.max_restarts),
            ("monitor-interval", self.monitor_interval),
            ("node-rank", self.node_rank),
            ("master-addr", self.master_addr),
            ("master-port", self.master_port),
            ("local-addr", self.local_addr),
            ("role", self.role),
        ]
        found = [f"--{name}={value}" for name, value in named if value is not None]
        found += ["--standalone"] if self.standalone else []
        for word in shlex.split(self.torchrun or ""):
            if word.lstrip("-").partition("=")[0].replace("_", "-") in ("no-python", "run-path", "m", "module"):
                raise OomdocError(f"--torchrun {word}: oomdoc runs the script itself (-m for a module)")
            found.append(word.replace("_", "-", 3) if word.startswith("--") and "=" not in word else word)
        return tuple(found)

    def share(self) -> float | None:
        """`--warn-at` as a number from 0 to 1."""
        if self.warn_at is None:
            return None
        try:
            value = float(self.warn_at.rstrip("% "))
        except ValueError:
            value = -1.0
        value = value / 100 if "%" in self.warn_at or value > 1 else value
        if not 0 < value <= 1:
            raise OomdocError(f"--warn-at {self.warn_at} is no share of a card: write 92% or 0.92")
        return value

    def spec(self) -> dict[str, Any]:
        """Fields of `RunSpec`. What cannot work is told before anything starts."""
        from ..recorders.triggers import parse

        dump = " ".join(self.dump or ()) or None
        parse(dump)
        return {
            "torchrun": self.torchrun_options(),
            "stacks": self.stacks.value,
            "max_entries": self.max_entries,
            "dump": dump,
            "keep": self.keep.value,
            "watch": self.watches,
            "warn_at": self.share(),
        }

    @property
    def watches(self) -> bool:
        return self.warn_at is not None or self.on_warn is not None or self.metrics is not None or self.live

    def check(self, job: "JobOptions", on_virtual: bool) -> None:
        """Options that the virtual GPU has no use for."""
        if on_virtual and self.torchrun_options():
            raise OomdocError("the options of torchrun are for real GPUs: the virtual GPU plays the other ranks itself")
        if on_virtual and self.stacks is StackKind.ALL:
            raise OomdocError("--stacks all needs a real GPU: the virtual one has no C++ frames")
