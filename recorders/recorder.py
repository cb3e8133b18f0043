"""What a recorder is to the process of a rank: the virtual GPU or a real one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..snapshots.model import Snapshot
from .hooks import Hooks


@dataclass(frozen=True, slots=True)
class Taken:
    """What a recorder saw. `raw` is PyTorch's own dict of it, with all that oomdoc does not read; None: none exists."""

    snapshot: Snapshot
    raw: dict[str, Any] | None = None


class Recorder(Protocol):
    """Events go in while the script runs; `snapshot` can be taken at any moment between two of them."""

    @property
    def hooks(self) -> Hooks: ...

    def snapshot(self, argv: Sequence[str]) -> Taken: ...

    def out_of_memory_at_end(self) -> bool:
        """An OOM was the last thing: no optimizer step came after it, whatever the script made of it."""
        ...

    def busy(self) -> bool:
        """In the middle of an event: not a moment to dump."""
        ...

    def allocated(self) -> tuple[int, int, int]:
        """(allocated now, highest allocated, events) of the fullest device; bytes."""
        ...

    def room(self) -> tuple[int, int, int] | None:
        """(reserved, free on the card, total of the card) of the fullest device; None before its first use; bytes."""
        ...

    def assumed_reads(self) -> Sequence[tuple[str, int]]:
        """File and line where the script was given assumed values of the GPU, the latest last; none on a real GPU."""
        ...
