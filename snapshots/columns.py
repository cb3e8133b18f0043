"""From the dicts of a snapshot to columns, leaving out (and naming) what is not sound."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .interning import StackTable
from .model import Action, Trace

MAX_BYTES = 1 << 47  # the user half of a 64-bit address space: no single allocation is larger
U64 = (1 << 64) - 1


class _ActionCodes(dict[object, int]):
    def __missing__(self, key: object) -> int:
        return int(Action.OTHER)


ACTIONS = _ActionCodes({action.name.lower(): int(action) for action in Action if action is not Action.OTHER})
ACTIONS["free"] = int(Action.FREE_COMPLETED)  # torch 2.0 and memory_viz write one event for both halves

Entry = dict[str, Any]
Pool = tuple[int, int]


class Unsound(Exception):  # noqa: N818  # internal signal: take the slow path that looks at every entry
    """A column has a value that is not of its type."""


class PoolTable:
    """Pool ids seen, (0, 0) first."""

    def __init__(self) -> None:
        self.index: dict[Pool, int] = {(0, 0): 0}

    def add(self, raw: object) -> int:
        """Index of a recorded pool id; -1 where none was recorded or it is no pair of integers."""
        if not isinstance(raw, list | tuple) or len(raw) != 2 or not all(type(part) is int for part in raw):
            return -1
        return self.index.setdefault((raw[0], raw[1]), len(self.index))

    def column(self, values: list[object]) -> NDArray[np.int32]:
        seen: dict[object, int] = {}
        out = np.empty(len(values), np.int32)
        for row, value in enumerate(values):
            key = tuple(value) if type(value) is list else value
            try:
                index = seen.get(key)
                if index is None:
                    index = seen[key] = self.add(value)
            except TypeError:
                index = -1
            out[row] = index
        return out


def trace(entries: object, stacks: StackTable, pools: PoolTable, device: int) -> tuple[Trace, list[str]]:
    """-> (columns, problems). `entries` is one list of `device_traces`."""
    if not isinstance(entries, list | tuple):
        return empty_trace(), [f"device {device}: its trace is not a list and was left out"]
    try:
        return _trace(entries, stacks, pools), []
    except Unsound:
        sound = [entry for raw in entries if (entry := _cleaned(raw)) is not None]
    problems = []
    if lost := len(entries) - len(sound):
        problems.append(
            f"device {device}: {lost} of {len(entries)} trace entries have no usable action or size and were left out, "
            "so what was live at each event may be wrong"
        )
    columns = _trace(sound, stacks, pools)
    moves = columns.action <= Action.FREE_COMPLETED
    if nowhere := int(np.count_nonzero(moves & (columns.address == 0))):
        problems.append(f"device {device}: {nowhere} trace entries have no address; their lifetimes are not known")
    return columns, problems


def empty_trace() -> Trace:
    return _trace([], StackTable(), PoolTable())


def _trace(entries: Sequence[Entry], stacks: StackTable, pools: PoolTable) -> Trace:
    try:
        names = list(map(itemgetter("action"), entries))
        action = np.fromiter(map(ACTIONS.__getitem__, names), np.uint8, len(names))
        size = _integers(list(map(itemgetter("size"), entries)), np.int64)
    except (KeyError, TypeError):
        raise Unsound from None
    if len(size) and not (size.min() >= 0 and size.max() <= MAX_BYTES):
        raise Unsound
    ooms: list[int] = np.flatnonzero(action == Action.OOM).tolist()
    free = {row: entries[row].get("device_free") for row in ooms}
    return Trace(
        action=action,
        address=_integers(_values(entries, "addr", 0, needed=action <= Action.SEGMENT_UNMAP), np.uint64),
        size=size,
        stream=_integers(_values(entries, "stream", 0), np.uint64),
        time_us=_integers(_values(entries, "time_us", -1), np.int64),
        stack=stacks.column(_values(entries, "frames", None)),
        pool=_pool(entries, pools),
        oom_device_free={row: value for row, value in free.items() if type(value) is int and 0 <= value <= MAX_BYTES},
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


def _integers(values: list[Any], dtype: type[np.int64] | type[np.uint64]) -> NDArray[Any]:
    if not set(map(type, values)) <= {int}:
        raise Unsound
    if dtype is np.uint64 and values and min(values) < 0:
        # a signed view of an unsigned pointer
        values = [value & U64 if value >= -(1 << 63) else -1 for value in values]
    try:
        return np.fromiter(values, dtype, len(values))
    except (OverflowError, ValueError):
        raise Unsound from None


def _pool(entries: Sequence[Entry], pools: PoolTable) -> NDArray[np.int32]:
    if not any("pool_id" in entry for entry in entries[:1]) and not any("pool_id" in entry for entry in entries):
        return np.full(len(entries), -1, np.int32)
    return pools.column(_values(entries, "pool_id", None))


def _cleaned(raw: object) -> Entry | None:
    """One trace entry with every key of its type, or None where its action or size is unusable."""
    if not isinstance(raw, dict) or not isinstance(raw.get("action"), str):
        return None
    action = ACTIONS[raw["action"]]
    size = raw.get("size")
    if type(size) is not int or not 0 <= size <= MAX_BYTES:
        if action not in (Action.OTHER, Action.SNAPSHOT, Action.OOM):
            return None
        size = 0
    time = raw.get("time_us")
    return {
        "action": raw["action"],
        "addr": _pointer(raw.get("addr")),
        "size": size,
        "stream": _pointer(raw.get("stream")),
        "time_us": time if type(time) is int and 0 <= time < 1 << 63 else -1,
        "frames": raw.get("frames"),
        "pool_id": raw.get("pool_id"),
        "device_free": raw.get("device_free"),
    }


def _pointer(value: object) -> int:
    return value if type(value) is int and 0 <= value <= U64 else 0
