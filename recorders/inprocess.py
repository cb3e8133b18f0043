"""A part of this process under a recorder: what `oomdoc.record()` and the pytest plugin stand on.

On the virtual GPU everything within is as in a run of its own; what was made on it stays behind as a meta tensor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ..configs.defaults import DEFAULT_GPU
from ..errors import OomdocError
from ..snapshots.model import Snapshot
from .launch import RunSpec
from .outcome import ending_facts, outcome_of
from .rank import recorder_of
from .recorder import Recorder
from .seat import Seat


class Live:
    """The recorder of a block that is running. Bytes are those of the fullest device."""

    def __init__(self, recorder: Recorder, mode: str) -> None:
        self.recorder = recorder
        self.mode = mode  # virtual | cuda

    @property
    def allocated_bytes(self) -> int:
        return self.recorder.allocated()[0]

    @property
    def peak_bytes(self) -> int:
        return self.recorder.allocated()[1]

    def snapshot(self) -> Snapshot:
        """As far as it has come."""
        return self.recorder.snapshot(()).snapshot

    @property
    def events(self) -> int:
        """How many there are so far, over all devices."""
        return self.recorder.allocated()[2]


def on_virtual(virtual: bool | None) -> bool:
    """None: where there is no CUDA device. Raises OomdocError where a real one is asked for and none is there."""
    real = torch.cuda.is_available()
    if virtual is False and not real:
        raise OomdocError("virtual=False needs a CUDA device and none is visible")
    return not real if virtual is None else virtual


@contextmanager
def recorded(
    done: Callable[[Snapshot], None],
    *,
    gpu: str | None = None,
    capacity_bytes: int | None = None,
    virtual: bool | None = None,
    nproc_per_node: int = 1,
) -> Iterator[Live]:
    """Records what runs within, and calls `done` with the snapshot at its end, also when an error ends it."""
    mode = "virtual" if on_virtual(virtual) else "cuda"
    spec = RunSpec(
        script="",
        run_dir=Path(),
        mode="virtual" if mode == "virtual" else "cuda",
        gpu=gpu or DEFAULT_GPU,
        capacity_bytes=capacity_bytes,
        nproc_per_node=nproc_per_node,
        steps=0,
    )
    with recorder_of(spec, Seat.of(spec)) as recorder:
        error: BaseException | None = None
        try:
            yield Live(recorder, mode)
        except BaseException as raised:
            error = raised
            raise
        finally:
            done(_ended(recorder, error))
            error = None


def _ended(recorder: Recorder, error: BaseException | None) -> Snapshot:
    """The whole block, with how it ended."""
    snapshot = recorder.snapshot(()).snapshot
    assert snapshot.recording is not None
    outcome = outcome_of(error, recorder.hooks.completed, oom_at_end=recorder.out_of_memory_at_end())
    facts = {**snapshot.recording.facts, **ending_facts(outcome, error)}
    return replace(snapshot, recording=replace(snapshot.recording, facts=facts))


def is_recording() -> bool:
    """A virtual GPU is on in this process: who asked for it has the recording."""
    from .virtual.session import active

    return active() is not None


def highest_allocated() -> int | None:
    """`torch.cuda.max_memory_allocated()` of the fullest device, real or virtual; None without any."""
    if not torch.cuda.is_available():
        return None
    return max(torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count()))
