"""Records of a memory snapshot: columns for events, blocks and segments; interned stacks.

Everything is per device; devices are never summed. Sizes are bytes, addresses unsigned 64 bit. The meaning of a
peak is that of `snapshots.timeline`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Action(IntEnum):
    """What a trace event did; names as in torch/csrc/cuda/Module.cpp."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    OTHER = 9


class BlockState(IntEnum):
    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of one stack. `line` 0 = not known (C++ frames)."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Interned call stacks. `stacks[i]` holds indices into `frames`, innermost first; index -1 anywhere = no stack."""

    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()

    def of(self, index: int) -> tuple[Frame, ...]:
        """The frames of stack `index`, innermost first; empty for -1."""
        return tuple(self.frames[i] for i in self.stacks[index]) if index >= 0 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The events of one device, oldest first; every column has shape (events,)."""

    action: NDArray[np.uint8]  # Action
    address: NDArray[np.uint64]  # 0 for OOM
    size: NDArray[np.int64]  # requested bytes for alloc and free; driver bytes for segments
    stream: NDArray[np.uint64]
    time_us: NDArray[np.int64]  # -1 = not recorded
    stack: NDArray[np.int32]  # index into Stacks.stacks; -1 = none
    pool: NDArray[np.int32]  # index into DeviceSnapshot.pools; -1 = not recorded
    oom_device_free: Mapping[int, int] = field(default_factory=dict)  # event -> bytes the driver had free

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Driver allocations at the moment of the dump, by address; shape (segments,)."""

    address: NDArray[np.uint64]
    total_bytes: NDArray[np.int64]
    stream: NDArray[np.uint64]
    large: NDArray[np.bool_]  # large pool (requests over 1 MiB)
    expandable: NDArray[np.bool_]
    pool: NDArray[np.int32]  # index into DeviceSnapshot.pools
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of those segments, in the order of the segments and of their addresses; shape (blocks,)."""

    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]  # 0 for inactive blocks, whose recorded value is stale
    state: NDArray[np.uint8]  # BlockState
    segment: NDArray[np.int32]  # index into Segments
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    device: int
    trace: Trace
    segments: Segments
    blocks: Blocks
    pools: tuple[tuple[int, int], ...] = ((0, 0),)  # pool ids; index 0 is the default pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A `record_function` range, e.g. Optimizer.step#AdamW.step. `stage` is START or END."""

    stage: str
    name: str
    device: int
    time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """From event `event` on (of its device), the job is in `step` (1-based) and `phase`.

    Phases: setup, forward, backward, optimizer, other (between them, e.g. the loss or the data loader).
    """

    event: int
    step: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecording:
    """What oomdoc's hooks knew about each event of one device; columns have shape (events,)."""

    category: NDArray[np.int8]  # index into Recording.categories for alloc events, -1 elsewhere or not known
    module: NDArray[np.int32]  # index into Recording.modules, -1 = outside any module
    estimated: NDArray[np.bool_]  # the event's size rests on an estimate (see Recording.fidelity)
    marks: tuple[Mark, ...] = ()
    category_by_address: Mapping[int, int] = field(default_factory=dict)  # blocks older than the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The plain-valued "oomdoc" key of a snapshot written by `oomdoc run`."""

    schema: str  # "oomdoc.recording/1"
    kind: str  # virtual | cuda
    argv: tuple[str, ...]
    versions: Mapping[str, str]
    gpu: str | None  # a name of configs/gpus.yaml, or what the driver calls it
    capacity_bytes: int | None  # what cudaMemGetInfo calls total
    outside_bytes: int | None  # context and whatever else is not the allocator's, at the end
    rank: int
    world_size: int
    categories: tuple[str, ...]
    modules: tuple[str, ...]
    devices: Mapping[int, DeviceRecording]
    facts: Mapping[str, object] = field(default_factory=dict)  # optimizer, parameters, modules, batch: for the planner
    fidelity: Mapping[str, object] = field(default_factory=dict)  # operations estimated, policy reads, assumptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One file: one process, one or more devices."""

    devices: tuple[DeviceSnapshot, ...]
    stacks: Stacks
    settings: Mapping[str, object] = field(default_factory=dict)  # allocator_settings, as recorded
    annotations: tuple[Annotation, ...] = ()
    recording: Recording | None = None
    problems: tuple[str, ...] = ()  # what the reader had to leave out, and why
