"""What the launcher knows of its ranks while they run: their progress, host memory, and what NVML says of the cards.

Sampled in a thread of the launcher, so that nothing of it runs in the script's own process.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import host_memory, nvml
from .uploading import upload, write_text

INTERVAL_SECONDS = 2.0
MOST_SAMPLES = 2_000  # then every other one is dropped: an hour at first, and always the whole run
SCHEMA = "oomdoc.samples/1"


class Overseer:
    """`peak_rss`: process id of a rank -> the most host memory it was seen to hold, in bytes."""

    def __init__(self, run_dir: Path, on_progress: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.run_dir = run_dir
        self.on_progress = on_progress
        self.peak_rss: dict[int, int] = {}
        self.ranks: dict[int, int] = {}  # process id -> rank
        self._reserved: dict[int, int] = {}  # process id -> what its allocator last had of the driver, bytes
        found = host_memory.limit()
        self.host_limit = found.limit_bytes if found else host_memory.total_bytes()
        self._kills = host_memory.kernel_kills()
        self._samples: list[dict[str, Any]] = []
        self._every = 1
        self._count = 0

    def heard(self, record: Mapping[str, Any]) -> None:
        pid = record.get("pid")
        if isinstance(pid, int):
            self.ranks[pid] = int(record.get("rank") or 0)
            if isinstance(record.get("reserved_bytes"), int):
                self._reserved[pid] = record["reserved_bytes"]
        if self.on_progress is not None:
            self.on_progress(record)

    def ask_for_dumps(self) -> None:
        for pid in self.ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)

    def kernel_kills(self) -> int:
        """Processes that the kernel killed for lack of memory since the run began."""
        now = host_memory.kernel_kills()
        return 0 if now is None or self._kills is None else max(0, now - self._kills)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._sample_until, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=5)
            self._sample_hosts()

    def _sample_until(self, stop: threading.Event) -> None:
        seen = nvml.cards()
        pause = 0.2  # a short run is seen too
        while not stop.wait(pause):
            pause = min(INTERVAL_SECONDS, 2 * pause)
            self._sample_hosts()
            if not isinstance(seen, str):
                seen = nvml.cards()
                if not isinstance(seen, str):
                    self._keep(seen)

    def _sample_hosts(self) -> None:
        for pid in list(self.ranks):
            held = host_memory.peak_rss_bytes(pid)
            if held is not None:
                self.peak_rss[pid] = max(held, self.peak_rss.get(pid, 0))

    def _keep(self, cards: list[nvml.Card]) -> None:
        self._count += 1
        if self._count % self._every:
            return
        on = Counter(each.pid for card in cards for each in card.holders)  # of a process on two, only a sum is known
        self._samples.append(
            {
                "time": round(time.time(), 1),
                "cards": [
                    {
                        "uuid": card.uuid,
                        "used_bytes": card.used_bytes,
                        "total_bytes": card.total_bytes,
                        "holders": [[each.pid, each.used_bytes] for each in card.holders],
                        "reserved_bytes": {
                            str(each.pid): self._reserved[each.pid]
                            for each in card.holders
                            if each.pid in self._reserved and on[each.pid] == 1
                        },
                    }
                    for card in cards
                ],
            }
        )
        if len(self._samples) >= MOST_SAMPLES:
            del self._samples[::2]
            self._every *= 2

    def conclude(self, ended: Sequence[str], url: str | None) -> None:
        """Leave what was seen beside the ranks' files, and what became of those that left no word."""
        content = {
            "schema": SCHEMA,
            "host": socket.gethostname(),
            "host_limit_bytes": self.host_limit,
            "peak_rss_bytes": {str(self.ranks[pid]): held for pid, held in self.peak_rss.items() if pid in self.ranks},
            "ranks": {str(pid): rank for pid, rank in self.ranks.items()},
            "ended": list(ended),
            "cards": self._samples,
        }
        path = self.run_dir / f"node-{socket.gethostname()}.json"
        if write_text(path, json.dumps(content)):
            upload(url, path)
