"""A real GPU as the recorder of a rank: PyTorch's own memory history, with the hooks' steps and phases."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..snapshots import reader
from ..snapshots.model import Snapshot
from .hooks import Hooks

MAX_ENTRIES = 1_000_000


class CudaRecorder:
    """Also the hooks' sink: roles and marks of a real recording are kept by address and time, in a later version."""

    def __init__(self, steps: int | None) -> None:
        self.hooks = Hooks(self, steps)

    def changed(self, phase: str, step: int, module: int) -> None:
        return None

    def mark(self, tensor: torch.Tensor, category: int) -> None:
        return None

    def snapshot(self, argv: Sequence[str]) -> Snapshot:
        handle, name = tempfile.mkstemp(suffix=".pickle")
        os.close(handle)
        try:
            _memory()._dump_snapshot(name)
            return reader.load(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def out_of_memory_at_end(self) -> bool:
        stats: dict[str, Any] = torch.cuda.memory_stats()
        return bool(stats.get("num_ooms", 0)) and not self.hooks.completed

    def busy(self) -> bool:
        return False

    def allocated(self) -> tuple[int, int, int]:
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), 0

    def assumed_reads(self) -> tuple[tuple[str, int], ...]:
        return ()


def _memory() -> Any:
    return torch.cuda.memory


@contextmanager
def cuda_recorder(*, steps: int | None) -> Iterator[CudaRecorder]:
    recorder = CudaRecorder(steps)
    _memory()._record_memory_history(max_entries=MAX_ENTRIES, stacks="python")
    try:
        with recorder.hooks.install():
            yield recorder
    finally:
        _memory()._record_memory_history(enabled=None)
