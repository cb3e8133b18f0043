"""The counters behind torch.cuda.memory_stats(), with PyTorch's key names.

Handing out and taking back blocks is the allocator's inner loop, so those steps are only noted, four numbers each; the
notes are folded into the counters, whole columns at a time, when somebody asks or when there are many.
"""

from threading import Lock

import numpy as np

POOL_KINDS = ("all", "small_pool", "large_pool")
HANDED_OUT, GIVEN_BACK, INACTIVE, SPLIT = range(4)  # kinds of notes
FOLD_AT = 1 << 18  # numbers noted before they are folded


class Stat:
    """One counter: its value, its peak, and what was ever given back. Units are those of its name (bytes or count)."""

    __slots__ = ("current", "freed", "peak", "reset_allocated", "reset_freed")

    def __init__(self) -> None:
        self.current = self.peak = self.freed = 0
        self.reset_allocated = self.reset_freed = 0

    def increase(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)

    def decrease(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def change_all(self, amounts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        """Increases (positive) and decreases (negative), in this order."""
        running = amounts.cumsum()
        self.peak = max(self.peak, self.current + int(running.max()))
        self.current += int(running[-1])
        self.freed -= int(amounts[amounts < 0].sum())

    def values(self) -> dict[str, int]:
        """The four values that PyTorch reports; allocated - freed is the change since the last accumulated reset."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.current + self.freed - self.reset_allocated,
            "freed": self.freed - self.reset_freed,
        }

    def reset_peak(self) -> None:
        self.peak = self.current

    def reset_accumulated(self) -> None:
        self.reset_allocated = self.current + self.freed
        self.reset_freed = self.freed


class Counters:
    """The statistics of one pool kind."""

    __slots__ = (
        "active",
        "active_bytes",
        "allocated_bytes",
        "allocation",
        "inactive_split",
        "inactive_split_bytes",
        "requested_bytes",
        "reserved_bytes",
        "segment",
    )

    def __init__(self) -> None:
        self.allocation, self.segment, self.active, self.inactive_split = Stat(), Stat(), Stat(), Stat()
        self.allocated_bytes, self.reserved_bytes, self.active_bytes = Stat(), Stat(), Stat()
        self.inactive_split_bytes, self.requested_bytes = Stat(), Stat()

    def items(self) -> list[tuple[str, Stat]]:
        return [(name, getattr(self, name)) for name in self.__slots__]


class Statistics:
    """All statistics of one device. `allocated_bytes` and `reserved_bytes` are always up to date."""

    __slots__ = (
        "_folding",
        "all",
        "allocated_bytes",
        "large_pool",
        "notes",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "num_ooms",
        "num_sync_all_streams",
        "oversize_allocations",
        "oversize_segments",
        "reserved_bytes",
        "small_pool",
    )

    def __init__(self) -> None:
        self.all, self.small_pool, self.large_pool = Counters(), Counters(), Counters()
        self.oversize_allocations, self.oversize_segments = Stat(), Stat()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0
        self.allocated_bytes = self.reserved_bytes = 0
        self._folding = Lock()
        self.notes: list[int] = []  # kind and pool, bytes of the block, bytes requested or count of split blocks

    # ---- steps; the frequent ones are written out where they happen, as `notes += (...)`

    def segment_obtained(self, large: bool, size: int) -> None:
        for counters in (self.all, self.large_pool if large else self.small_pool):
            counters.segment.increase(1)
        self.memory_obtained(large, size)

    def segment_released(self, large: bool, size: int) -> None:
        for counters in (self.all, self.large_pool if large else self.small_pool):
            counters.segment.decrease(1)
        self.memory_released(large, size)

    def memory_obtained(self, large: bool, size: int) -> None:
        self.reserved_bytes += size
        for counters in (self.all, self.large_pool if large else self.small_pool):
            counters.reserved_bytes.increase(size)

    def memory_released(self, large: bool, size: int) -> None:
        self.reserved_bytes -= size
        for counters in (self.all, self.large_pool if large else self.small_pool):
            counters.reserved_bytes.decrease(size)

    # ---- folding

    def fold(self) -> None:
        """Bring the counters up to date with the notes."""
        with self._folding:  # a thread that shows progress may ask while another allocates
            noted = len(self.notes)
            rows = np.array(self.notes[:noted], dtype=np.int64).reshape(-1, 3)
            del self.notes[:noted]
            self._fold(rows)

    def _fold(self, rows: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> None:
        large = (rows[:, 0] & 1).astype(np.bool_)
        for counters, rows_of_kind in (
            (self.all, rows),
            (self.large_pool, rows[large]),
            (self.small_pool, rows[~large]),
        ):
            if len(rows_of_kind):
                _fold_kind(counters, rows_of_kind)

    def _stats(self) -> list[tuple[str, Stat]]:
        self.fold()
        named = [(f"{name}.{kind}", stat) for kind in POOL_KINDS for name, stat in getattr(self, kind).items()]
        return [
            *named,
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ]

    def reset_peak(self) -> None:
        for _, stat in self._stats():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        for _, stat in self._stats():
            stat.reset_accumulated()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0

    def as_dict(self) -> dict[str, int]:
        """The flat mapping of torch.cuda.memory_stats(), keys in its order (sorted); without `max_split_size`."""
        flat = {f"{name}.{key}": value for name, stat in self._stats() for key, value in stat.values().items()}
        for name in ("num_alloc_retries", "num_device_alloc", "num_device_free", "num_ooms", "num_sync_all_streams"):
            flat[name] = getattr(self, name)
        return dict(sorted(flat.items()))


def _fold_kind(counters: Counters, rows: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> None:
    kind, size, third = rows[:, 0] >> 1, rows[:, 1], rows[:, 2]
    out, back = (kind == HANDED_OUT).astype(np.int64), (kind == GIVEN_BACK).astype(np.int64)
    inactive, split = (kind == INACTIVE).astype(np.int64), (kind == SPLIT).astype(np.int64)
    counters.allocation.change_all(out - back)
    counters.allocated_bytes.change_all((out - back) * size)
    counters.active.change_all(out - inactive)
    counters.active_bytes.change_all((out - inactive) * size)
    counters.requested_bytes.change_all((out - inactive) * third)
    counters.inactive_split_bytes.change_all(split * size)
    counters.inactive_split.change_all(split * third)
