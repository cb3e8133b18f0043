"""Reading a snapshot, whatever wrote it, into columns. Nothing in the file is executed.

Containers: the pickle of `torch.cuda.memory._dump_snapshot` or of `memory_snapshot` (a bare list of segments), a JSON
copy of either, and the HTML page of memory_viz; each also in gzip, bzip2, xz or zip (`torch.save` writes one). Keys of
torch 2.0 to 2.14; unknown keys and actions are ignored. What a file contradicts is left out and named in
`Snapshot.problems`.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import UnreadableInputError
from . import columns, layout, recording, sandbox, store
from .columns import PoolTable
from .containers import compression, read_object
from .interning import StackTable
from .layout import MAX_DEVICE, RawSegments
from .model import Annotation, DeviceSnapshot, Snapshot, Trace
from .plain import plain_mapping
from .timeline import extent
from .unpickler import OddPickleError, collector_paused

FENCE_BYTES = 256 << 10  # above it a child process costs less than walking the opcodes
PACKED_FACTOR = 20  # how much a compressed file is taken to expand when memory and time are bounded
MAX_SUM = float(1 << 62)  # sums of bytes stay exact in 64 bits
READER_VERSION = 1  # raise it when the same file is read into other columns: kept ones are then read anew
KEEP_BYTES = 32 << 20  # reading takes longer than a person notices
MAX_SIDE_BY_SIDE = 4  # each child needs several times the size of its file


def load(path: str | Path, on_progress: Callable[[float], None] | None = None) -> Snapshot:
    """Raises UnreadableInputError, with one line that says why, for anything that is not a snapshot.

    On Linux a large file is read in a child process of bounded memory and time, and its columns are kept beside it
    (`.<name>.columns`) for the next command. Meanwhile `on_progress` is told, some times a second, the share of the
    file that has been read (0 to 1).
    """
    return _Loading(Path(path)).result(on_progress)


def load_all(paths: Sequence[str | Path], meanwhile: Callable[[], None] | None = None) -> list[Snapshot]:
    """The snapshots of `paths`, in their order; large files are read side by side, and `meanwhile` is called once."""
    room = max(1, min(MAX_SIDE_BY_SIDE, os.cpu_count() or 1))
    waiting = list(map(Path, paths))
    under_way: deque[_Loading] = deque()
    out = []
    try:
        while waiting or under_way:
            while waiting and len(under_way) < room:
                under_way.append(_Loading(waiting.pop(0)))
            if meanwhile is not None:
                meanwhile()
                meanwhile = None
            out.append(under_way.popleft().result())
    finally:
        for each in under_way:
            each.stop()
    return out


# the child process ends without taking its millions of objects apart one by one
_ALIVE: list[object] = []


class _Loading:
    """One file: read at once when it is small, or under way in a child process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: Snapshot | None = None
        self._child: sandbox.Reading | None = None
        self._share = 0.0
        with self._errors():
            self._file = path.open("rb")
            try:
                self._begin()
            except BaseException:
                self._file.close()
                raise

    def _begin(self) -> None:
        file, state = self._file, os.fstat(self._file.fileno())
        packed = compression(file.read(8)) is not None
        file.seek(0)
        self._size = state.st_size
        self._source = {"size": state.st_size, "changed_ns": state.st_mtime_ns, "reader": READER_VERSION}
        if not sandbox.available() or (self._size <= FENCE_BYTES and not packed):
            try:
                self._done = _read(file, fenced=False)
            except OddPickleError:
                if not sandbox.available():
                    raise
                file.seek(0)
        elif self._size >= KEEP_BYTES:
            self._done = store.kept(self._path, self._source)
        if self._done is None:
            payload = self._size * (PACKED_FACTOR if packed else 1)
            self._child = sandbox.Reading(lambda: _read(file, fenced=True), payload)

    def result(self, on_progress: Callable[[float], None] | None = None) -> Snapshot:
        with self._errors(), self._file:
            if self._child is None:
                assert self._done is not None
                return self._done
            snapshot = self._child.result(None if on_progress is None else lambda: on_progress(self._share_read()))
            return store.keep(snapshot, self._path, self._source) if self._size >= KEEP_BYTES else snapshot

    def stop(self) -> None:
        self._file.close()
        if self._child is not None:
            self._child.stop()

    def _share_read(self) -> float:
        # parent and child share one file position; a container is looked at from its start more than once
        share = os.lseek(self._file.fileno(), 0, os.SEEK_CUR) / max(self._size, 1)
        self._share = max(self._share, share)
        return self._share

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except UnreadableInputError as error:
            raise UnreadableInputError(f"{self._path} is not a snapshot: {error}") from None
        except OSError as error:
            raise UnreadableInputError(f"cannot read {self._path}: {error.strerror or error}") from None


def _read(file: IO[bytes], *, fenced: bool) -> Snapshot:
    with collector_paused():
        raw, payload = read_object(file, fenced=fenced)
        if fenced:
            _ALIVE.append(raw)
        return _from(raw, consume=not fenced, payload=payload)


def from_dict(raw: object) -> Snapshot:
    """The same from what `torch.cuda.memory._snapshot()` or `memory_snapshot()` returns; `raw` is left as it is."""
    return _from(raw, consume=False, payload=None)


def _from(raw: object, *, consume: bool, payload: int | None) -> Snapshot:
    """With `consume` the traces in `raw` are emptied as they become columns. `payload` = bytes it was read from."""
    if isinstance(raw, list):
        raw = {"segments": raw}
    if not isinstance(raw, dict):
        raise UnreadableInputError(f"it holds a {type(raw).__name__}, not the dict or list that PyTorch writes")
    if "segments" not in raw and "device_traces" not in raw:
        raise UnreadableInputError("it has neither segments nor device_traces, so PyTorch did not write it")
    if payload is not None and _rows(raw) > payload:
        raise UnreadableInputError("it names more events and blocks than its size can hold (the same list many times)")
    with collector_paused():
        return _build(raw, consume=consume)


def _rows(raw: dict[str, Any]) -> int:
    """Events and blocks that would be looked at."""
    traces, segments = raw.get("device_traces"), raw.get("segments")
    rows = sum(len(each) for each in traces if isinstance(each, list)) if isinstance(traces, list) else 0
    if isinstance(segments, list):
        blocks = (each.get("blocks") for each in segments if isinstance(each, dict))
        rows += sum(len(each) for each in blocks if isinstance(each, list))
    return rows


def _build(raw: dict[str, Any], *, consume: bool) -> Snapshot:
    stacks = StackTable()
    segments, problems = layout.by_device(raw.get("segments") or [])
    traces = raw.get("device_traces") or []
    if not isinstance(traces, list | tuple):
        traces, problems = [], [*problems, "device_traces is not a list and was left out"]
    if len(traces) > MAX_DEVICE + 1:
        raise UnreadableInputError(f"it has the traces of {len(traces)} devices")
    devices = []
    for number in sorted(segments.keys() | {d for d, entries in enumerate(traces) if entries}):
        pools = PoolTable()
        entries = traces[number] if number < len(traces) else []
        trace, lost = columns.trace(entries, stacks, pools, number, consume=consume)
        device, found = _device(number, trace, segments.get(number, RawSegments()), stacks, pools)
        if len(device.trace) or len(device.segments):
            devices.append(device)
        problems += [*lost, *found]
    if problems and not devices:
        raise UnreadableInputError(f"nothing in it can be used ({problems[0]})")
    events = {device.device: len(device.trace) for device in devices}
    recorded, found = recording.decode(raw.get("oomdoc"), events)
    annotations, lost = _annotations(raw.get("external_annotations"))
    return Snapshot(
        devices=tuple(devices),
        stacks=stacks.stacks(),
        settings=plain_mapping(raw.get("allocator_settings")),
        annotations=annotations,
        recording=recorded,
        problems=(*problems, *found, *lost),
    )


def _device(
    number: int, trace: Trace, raw: RawSegments, stacks: StackTable, pools: PoolTable
) -> tuple[DeviceSnapshot, list[str]]:
    segments, blocks, found = layout.columns(raw, stacks, pools, number)
    if any(float(sizes.sum(dtype=np.float64)) > MAX_SUM for sizes in (trace.size, segments.total_bytes, blocks.size)):
        raise UnreadableInputError("its sizes add up to more than any machine has, so they are not bytes")
    device = DeviceSnapshot(device=number, trace=trace, segments=segments, blocks=blocks, pools=tuple(pools.index))
    return device, [*found, *_contradictions(device)]


def _contradictions(device: DeviceSnapshot) -> list[str]:
    found = extent(device)
    if found.consistent:
        return []
    what, short = ("live", found.start) if found.start < 0 else ("reserved", found.reserved_start)
    return [
        f"device {device.device}: the trace and the segments disagree ({what} bytes before the first event come out as "
        f"{short}), so one of them was cut; no peak can be told, only the state at the dump"
    ]


def _annotations(raw: object) -> tuple[tuple[Annotation, ...], list[str]]:
    if raw is None:
        return (), []
    rows = raw if isinstance(raw, list | tuple) else []
    out = []
    for each in rows:
        if (
            isinstance(each, Mapping)
            and isinstance(name := each.get("name"), str)
            and isinstance(stage := each.get("stage"), str)
            and type(time := each.get("time_us")) is int
        ):
            device = each.get("device")
            out.append(Annotation(stage=stage, name=name, device=device if type(device) is int else 0, time_us=time))
    lost = len(rows) - len(out)
    return tuple(out), [f"{lost} annotations have no name, stage or time and were left out"] if lost else []
