"""`oomdoc.record()`: a block or a function under a recorder, in this process."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from ..errors import OomdocError

if TYPE_CHECKING:
    from ..recorders.inprocess import Live
    from ..snapshots.model import Snapshot
    from .analysis import Analysis

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Recording:
    """What was recorded. While the block runs, only the numbers of the moment are known; bytes, of the fullest device.

    In a notebook it is shown as its report.
    """

    def __init__(self) -> None:
        self._live: Live | None = None
        self._snapshot: Snapshot | None = None
        self._analysis: Analysis | None = None

    @property
    def running(self) -> bool:
        return self._live is not None

    @property
    def allocated_bytes(self) -> int:
        """What is allocated at this moment of the block."""
        if self._live is None:
            raise OomdocError("allocated_bytes is of a block that runs; afterwards: analyze().devices[0].final_bytes")
        return self._live.allocated_bytes

    @property
    def events(self) -> int:
        """How many allocations, frees and so on there are so far."""
        if self._live is None:
            raise OomdocError("events is of a block that runs; afterwards: snapshot.devices[0].trace")
        return self._live.events

    def now(self) -> "Snapshot":
        """A snapshot of the block as far as it has come."""
        return self.snapshot if self._live is None else self._live.snapshot()

    @property
    def peak_bytes(self) -> int:
        """The highest `max_memory_allocated` so far, or of the whole block once it has ended."""
        if self._live is not None:
            return self._live.peak_bytes
        peak = self.analyze().peak_bytes
        if peak is None:
            raise OomdocError("the recording does not tell its peak of allocated bytes")
        return peak

    @property
    def snapshot(self) -> "Snapshot":
        """Of the whole block. Raises OomdocError while it runs."""
        if self._snapshot is None:
            raise OomdocError("the snapshot is there when the recorded block has ended")
        return self._snapshot

    def analyze(self) -> "Analysis":
        """The diagnosis, once the block has ended."""
        from .analysis import analyze

        if self._analysis is None:
            self._analysis = analyze(self.snapshot)
        return self._analysis

    def plan(self) -> "Analysis":
        """The diagnosis with the changes that would make the job fit."""
        from .analysis import plan

        return plan(self.snapshot)

    def save(self, path: str | PathLike[str]) -> None:
        """As a snapshot file that every command, and PyTorch's own viewer, reads."""
        from ..snapshots import writer

        writer.dump(self.snapshot, Path(path))

    def __repr__(self) -> str:
        if self.running:
            return f"<oomdoc.Recording, running: {self.allocated_bytes} bytes allocated>"
        return "<oomdoc.Recording, not started>" if self._snapshot is None else repr(self.analyze())

    def _repr_markdown_(self) -> str:
        return repr(self) if self._snapshot is None else self.analyze()._repr_markdown_()


class record:  # noqa: N801  (used as a function, as contextlib's own)
    """Record the GPU memory of a block, or of each call of a function.

        with oomdoc.record(gpu="a100-40gb") as recording:
            train()
        print(recording.analyze())

        @oomdoc.record(gpu="a100-40gb")
        def train(): ...

        train()
        train.recording.peak_bytes

    Where there is no CUDA device (or with `virtual=True`) the block runs on a virtual GPU: nothing is computed, and
    what it made there cannot be used afterwards. `save` writes the snapshot to a file, also when the block ends in an
    error, which passes through. Blocks do not nest.
    """

    def __init__(
        self,
        gpu: str | None = None,
        *,
        virtual: bool | None = None,
        capacity: str | int | None = None,
        devices: int = 1,
        save: str | PathLike[str] | None = None,
    ) -> None:
        self._gpu, self._virtual, self._capacity = gpu, virtual, capacity
        self._devices, self._save = devices, save
        self._running: list[tuple[Recording, AbstractContextManager[Live]]] = []

    def __enter__(self) -> Recording:
        from ..configs.loader import gpu as find
        from ..configs.loader import parse_capacity

        capacity = None if self._capacity is None else parse_capacity(str(self._capacity))
        name = None if self._gpu is None else find(self._gpu).name
        from ..recorders.inprocess import recorded  # torch: not before the rest is known to be right

        recording = Recording()

        def done(snapshot: "Snapshot") -> None:
            recording._snapshot = snapshot
            if self._save is not None:
                recording.save(self._save)

        block = recorded(done, gpu=name, capacity_bytes=capacity, virtual=self._virtual, nproc_per_node=self._devices)
        recording._live = block.__enter__()
        self._running.append((recording, block))
        return recording

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recording, block = self._running.pop()
        try:
            block.__exit__(kind, error, trace)
        finally:
            recording._live = None

    def __call__(self, function: Callable[Given, Result]) -> "Recorded[Given, Result]":
        return Recorded(function, self)


class Recorded(Generic[Given, Result]):
    """A function each of whose calls is recorded; `recording` is that of the last one."""

    def __init__(self, function: Callable[Given, Result], how: record) -> None:
        functools.update_wrapper(self, function)
        self._function, self._how = function, how
        self.recording: Recording | None = None

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with self._how as self.recording:
            return self._function(*args, **kwargs)

    def __get__(self, owner: object, kind: type | None = None) -> Callable[..., Result]:
        """As a method of a class."""
        return self if owner is None else functools.partial(self.__call__, owner)  # type: ignore[arg-type]
