"""What ranks that run side by side tell each other: Python objects and small numbers, by files of the run directory.

A pipeline's stages differ, and each learns from its neighbours what it will receive. So a rank that exchanges messages
with another asks the launcher to run that one as well (`peer`), and what it is sent it waits for. Bulk data is never
sent: nobody computed it. torch is not imported here.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .errors import UnsupportedOperationError

FOLDER = "mail"
PEER = "peer"  # key of what the launcher is told: the rank to run as well
PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.005


def ended(folder: Path, rank: int) -> Path:
    """The file by which the launcher tells that no more comes from `rank`."""
    return folder / f"{rank}.ended"


class Mailbox:
    """Of one rank. Without a folder it runs alone: what it sends is lost, and waiting for a message is an error."""

    def __init__(
        self, rank: int, folder: Path | None = None, say: Callable[[dict[str, int]], None] | None = None
    ) -> None:
        self.rank = rank
        self._folder = folder
        self._say = say
        self._asked: set[int] = set()
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._tensors_to: set[int] = set()
        self._tensors_from: set[int] = set()

    @property
    def runs_beside(self) -> bool:
        """Whether the ranks that this one exchanges messages with are run as well."""
        return self._folder is not None

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks that this one asked for."""
        return tuple(sorted(self._asked))

    def peer(self, rank: int) -> None:
        """`rank` differs from this one: the launcher is to run it too."""
        if rank == self.rank or rank in self._asked or self._say is None:
            return
        self._asked.add(rank)
        self._say({PEER: rank, "rank": self.rank})

    def tensor_sent(self, rank: int) -> None:
        """A tensor went to `rank`. In a ring, ranks send to one side and receive from the other, and hold the same."""
        self._tensors_to.add(rank)
        if rank in self._tensors_from:
            self.peer(rank)

    def tensor_received(self, rank: int) -> None:
        self._tensors_from.add(rank)
        if rank in self._tensors_to:
            self.peer(rank)

    def send(self, rank: int, message: bytes) -> None:
        if self._folder is None:
            return
        self.peer(rank)
        path = self._folder / f"{self.rank}-{rank}-{self._sent[rank]}"
        self._sent[rank] += 1
        written = path.with_suffix(".tmp")
        written.write_bytes(message)
        os.replace(written, path)

    def receive(self, rank: int) -> bytes:
        """The next message from `rank`; raises UnsupportedOperationError when none will come."""
        if self._folder is None:
            raise _nothing(self.rank, rank, "which is not run: leave out --rank, and the ranks that differ are run")
        self.peer(rank)
        path = self._folder / f"{rank}-{self.rank}-{self._received[rank]}"
        self._received[rank] += 1
        last = time.monotonic() + PATIENCE_SECONDS
        while not path.exists():
            if ended(self._folder, rank).exists() and not path.exists():
                raise _nothing(self.rank, rank, "which ended without sending it, or is one too many to run")
            if time.monotonic() > last:
                raise _nothing(self.rank, rank, f"for more than {PATIENCE_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        message = path.read_bytes()
        path.unlink()
        return message


def _nothing(mine: int, theirs: int, why: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "torch.distributed.recv",
        f"rank {mine} waits for what rank {theirs} sends, {why}",
        "Give PipelineStage its input_args and output_args, or run all ranks that differ (no --rank).",
    )
