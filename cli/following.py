"""What is done with the records that the ranks send while a job runs: shown, written as metrics, acted on."""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .output import say
from .progress import progress

if TYPE_CHECKING:
    from .real_options import RealOptions

OnRecord = Callable[[Mapping[str, Any]], None]
METRICS_SECONDS = 1.0
COMMAND_SECONDS = 60.0
_GAUGES = {  # of a progress record: name of the gauge, its help
    "allocated_bytes": ("oomdoc_allocated_bytes", "Bytes that PyTorch has handed out to tensors."),
    "peak_bytes": ("oomdoc_peak_allocated_bytes", "The most bytes handed out so far."),
    "reserved_bytes": ("oomdoc_reserved_bytes", "Bytes that PyTorch holds of the card."),
    "free_bytes": ("oomdoc_device_free_bytes", "Bytes of the card that nobody holds."),
    "total_bytes": ("oomdoc_device_total_bytes", "Bytes of the card."),
    "step": ("oomdoc_step", "Optimizer steps begun."),
}


@contextmanager
def followers(what: str, stream: TextIO, real: "RealOptions | None" = None) -> Iterator[OnRecord]:
    """Gives the function that a run calls with each record; `what` stands before the progress on a terminal."""
    with ExitStack() as stack:
        shown: OnRecord
        if real is not None and real.live and stream.isatty():
            from .live import live

            shown = stack.enter_context(live(stream))
        else:
            shown = stack.enter_context(progress(what, stream))
        metrics = None if real is None or real.metrics is None else Metrics(real.metrics)
        command = None if real is None or real.on_warn is None else OnWarn(real.on_warn)
        if command is not None:
            stack.callback(command.wait)
        if metrics is not None:
            stack.callback(metrics.write)

        def follow(record: Mapping[str, Any]) -> None:
            if metrics is not None:
                metrics.saw(record)
            if "warning" not in record:
                shown(record)
            elif command is not None:
                command.run(record)

        yield follow


class OnWarn:
    """Runs the user's command in a shell, the warning's facts as JSON on its stdin; the job does not wait for it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._running: list[threading.Thread] = []

    def run(self, record: Mapping[str, Any]) -> None:
        facts = json.dumps({"schema": "oomdoc.warning/1", **record})
        thread = threading.Thread(target=self._run, args=(facts,), daemon=True)
        thread.start()
        self._running.append(thread)

    def _run(self, facts: str) -> None:
        try:
            done = subprocess.run(self._command, shell=True, input=facts, text=True, timeout=COMMAND_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"--on-warn {self._command}: {error}")
            return
        if done.returncode:
            say(f"--on-warn {self._command} ended with status {done.returncode}")

    def wait(self) -> None:
        """At the end of the job: a warning of its last second is acted on too."""
        for thread in self._running:
            thread.join(timeout=COMMAND_SECONDS)


class Metrics:
    """A file in Prometheus' text format, as node_exporter's textfile collector reads it; renamed into place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ranks: dict[int, Mapping[str, Any]] = {}
        self._warnings: dict[tuple[int, str], int] = {}
        self._next = 0.0
        self._failed = False

    def saw(self, record: Mapping[str, Any]) -> None:
        rank = int(record.get("rank") or 0)
        if "warning" in record:
            key = rank, str(record["warning"])
            self._warnings[key] = self._warnings.get(key, 0) + 1
        else:
            self._ranks[rank] = record
        now = time.monotonic()
        if now >= self._next or "warning" in record:
            self._next = now + METRICS_SECONDS
            self.write()

    def write(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            temporary.write_text(self.text(), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if not self._failed:
                say(f"--metrics {self._path} cannot be written: {error.strerror or error}")
            self._failed = True

    def text(self) -> str:
        lines: list[str] = []
        for key, (name, help_text) in _GAUGES.items():
            rows = [(rank, record[key]) for rank, record in sorted(self._ranks.items()) if record.get(key) is not None]
            if rows:
                lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
                lines += [f'{name}{{rank="{rank}"}} {value}' for rank, value in rows]
        parts = [(rank, record.get("parts") or {}) for rank, record in sorted(self._ranks.items())]
        if any(held for _, held in parts):
            name = "oomdoc_category_bytes"
            lines += [f"# HELP {name} Bytes by what they are for.", f"# TYPE {name} gauge"]
            lines += [
                f'{name}{{rank="{rank}",category="{category}"}} {value}'
                for rank, held in parts
                for category, value in held.items()
            ]
        name = "oomdoc_warnings_total"
        lines += [f"# HELP {name} Warnings so far.", f"# TYPE {name} counter"]
        lines += [f'{name}{{rank="{r}",kind="{kind}"}} {n}' for (r, kind), n in sorted(self._warnings.items())]
        return "\n".join(lines) + "\n"
