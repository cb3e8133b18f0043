"""From the dicts of `device_traces` to columns, leaving out (and counting) what is not sound.

A chunk at a time: the dicts of one chunk stay in the processor's cache while each key is read, and are released at
once where nobody else holds them.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .interning import StackTable
from .model import Action, Trace

MAX_BYTES = 1 << 47  # the user half of a 64-bit address space: no single allocation is larger
U64 = (1 << 64) - 1
CHUNK = 4096

Entry = dict[str, Any]
Pool = tuple[int, int]
Column = NDArray[Any]


class _ActionCodes(dict[object, int]):
    def __missing__(self, key: object) -> int:
        return int(Action.OTHER)


ACTIONS = _ActionCodes({action.name.lower(): int(action) for action in Action if action is not Action.OTHER})
ACTIONS["free"] = int(Action.FREE_COMPLETED)  # torch 2.0 and memory_viz write one event for both halves


class Unsound(Exception):  # noqa: N818  # internal signal: take the slow path that looks at every entry
    """A column has a value that is not of its type."""


class PoolTable:
    """Pool ids seen, (0, 0) first."""

    def __init__(self) -> None:
        self.index: dict[Pool, int] = {(0, 0): 0}
        self._of_value = _PoolOfValue(self)

    def add(self, raw: object) -> int:
        """Index of a recorded pool id; -1 where none was recorded or it is no pair of integers."""
        if not isinstance(raw, list | tuple) or len(raw) != 2 or not all(type(part) is int for part in raw):
            return -1
        return self.index.setdefault((raw[0], raw[1]), len(self.index))

    def column(self, values: list[Any]) -> NDArray[np.int32]:
        first = values[0] if values else None
        if first in (None, (0, 0)) and values.count(first) == len(values):
            return np.full(len(values), self.add(first), np.int32)
        try:
            return np.fromiter(map(self._of_value.__getitem__, values), np.int32, len(values))
        except TypeError:  # lists, from a JSON copy
            return np.fromiter(map(self.add, values), np.int32, len(values))


class _PoolOfValue(dict[object, int]):
    def __init__(self, table: PoolTable) -> None:
        super().__init__({None: -1})
        self._table = table

    def __missing__(self, key: object) -> int:
        index = self[key] = self._table.add(key)
        return index


def trace(
    entries: object, stacks: StackTable, pools: PoolTable, device: int, *, consume: bool
) -> tuple[Trace, list[str]]:
    """-> (columns, problems). `entries` is one list of `device_traces`; with `consume` it is emptied on the way."""
    if not isinstance(entries, list | tuple):
        return empty_trace(), [f"device {device}: its trace is not a list and was left out"]
    chunks, device_free, rows = [], {}, 0
    for start in range(0, len(entries), CHUNK):
        chunk = entries[start : start + CHUNK]
        if consume and isinstance(entries, list):
            entries[start : start + CHUNK] = [None] * len(chunk)
        try:
            columns = _columns(chunk, stacks, pools)
        except Unsound:
            chunk = [entry for raw in chunk if (entry := _cleaned(raw)) is not None]
            columns = _columns(chunk, stacks, pools)
        for row in np.flatnonzero(columns[0] == Action.OOM).tolist():
            if _in(free := chunk[row].get("device_free"), MAX_BYTES):
                device_free[rows + row] = free
        rows += len(chunk)
        chunks.append(columns)
    out = _joined(chunks, device_free)
    return out, _problems(device, out, len(entries))


def empty_trace() -> Trace:
    return _joined([], {})


def _problems(device: int, trace: Trace, entries: int) -> list[str]:
    problems = []
    if lost := entries - len(trace):
        problems.append(
            f"device {device}: {lost} of {entries} trace entries have no usable action or size and were left out, "
            "so what was live at each event may be wrong"
        )
    nowhere = int(np.count_nonzero((trace.action <= Action.FREE_COMPLETED) & (trace.address == 0)))
    if nowhere:
        problems.append(f"device {device}: {nowhere} trace entries have no address; their lifetimes are not known")
    return problems


_READ = (
    ("action", np.uint8),
    ("address", np.uint64),
    ("size", np.int64),
    ("stream", np.uint64),
    ("time_us", np.int64),
    ("stack", np.int32),
    ("pool", np.int32),
)


def _joined(chunks: list[tuple[Column, ...]], device_free: dict[int, int]) -> Trace:
    columns = {
        name: np.concatenate([chunk[i] for chunk in chunks]) if chunks else np.empty(0, dtype)
        for i, (name, dtype) in enumerate(_READ)
    }
    return Trace(**columns, oom_device_free=device_free)


_ACTION: Callable[[Entry], Any] = itemgetter("action")
_SIZE: Callable[[Entry], Any] = itemgetter("size")


def _columns(entries: Sequence[Entry], stacks: StackTable, pools: PoolTable) -> tuple[Column, ...]:
    """The columns in the order of _READ."""
    count = len(entries)
    try:
        action = np.fromiter(map(ACTIONS.__getitem__, map(_ACTION, entries)), np.uint8, count)
        sizes = list(map(_SIZE, entries))
    except (KeyError, TypeError):
        raise Unsound from None
    size = _integers(sizes)
    if not set(map(type, sizes)) <= {int}:
        raise Unsound
    if count and not (size.min() >= 0 and size.max() <= MAX_BYTES):
        raise Unsound
    return (
        action,
        _pointers(_values(entries, "addr", 0, needed=action <= Action.SEGMENT_UNMAP)),
        size,
        _pointers(_values(entries, "stream", 0)),
        _integers(_values(entries, "time_us", -1)),
        stacks.column(_values(entries, "frames", None)),
        pools.column(_values(entries, "pool_id", None)),
    )


def _values(
    entries: Sequence[Entry], key: str, default: object, *, needed: NDArray[np.bool_] | None = None
) -> list[Any]:
    """`key` of every entry; where it is missing the default, unless `needed` marks that row."""
    try:
        return list(map(itemgetter(key), entries))
    except KeyError:
        pass
    if needed is not None and not all(key in entries[row] for row in np.flatnonzero(needed).tolist()):
        raise Unsound
    return [entry.get(key, default) for entry in entries]


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Raises Unsound for what is no number or does not fit; a fraction is cut off."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (OverflowError, TypeError, ValueError):
        raise Unsound from None


def _pointers(values: list[Any]) -> NDArray[np.uint64]:
    """Unsigned 64 bit; negative values are the signed view of an unsigned pointer."""
    if values and values.count(0) == len(values):
        return np.zeros(len(values), np.uint64)
    try:
        return _integers(values).view(np.uint64)
    except Unsound:
        if not set(map(type, values)) <= {int} or max(values) > U64 or min(values) < -(1 << 63):
            raise
    return np.fromiter((value & U64 for value in values), np.uint64, len(values))


def _cleaned(raw: object) -> Entry | None:
    """One trace entry with every key of its type, or None where its action or size is unusable."""
    if not isinstance(raw, dict) or not isinstance(raw.get("action"), str):
        return None
    action = ACTIONS[raw["action"]]
    size = raw.get("size")
    if not _in(size, MAX_BYTES):
        if action not in (Action.OTHER, Action.SNAPSHOT, Action.OOM):
            return None
        size = 0
    time = raw.get("time_us")
    return {
        "action": raw["action"],
        "addr": _pointer(raw.get("addr")),
        "size": size,
        "stream": _pointer(raw.get("stream")),
        "time_us": time if _in(time, (1 << 63) - 1) else -1,
        "frames": raw.get("frames"),
        "pool_id": raw.get("pool_id"),
        "device_free": raw.get("device_free"),
    }


def _pointer(value: Any) -> int:
    return int(value) if _in(value, U64) else 0


def _in(value: object, high: int) -> bool:
    return type(value) is int and 0 <= value <= high
