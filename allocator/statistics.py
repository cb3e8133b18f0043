"""The counters behind torch.cuda.memory_stats(), with PyTorch's key names."""

POOL_KINDS = ("all", "small_pool", "large_pool")


class Stat:
    """One counter: its value, its peak, and what was ever given back. Units are those of its name (bytes or count)."""

    __slots__ = ("current", "freed", "peak", "reset_allocated", "reset_freed")

    def __init__(self) -> None:
        self.current = self.peak = self.freed = 0
        self.reset_allocated = self.reset_freed = 0

    def increase(self, amount: int) -> None:
        current = self.current + amount
        self.current = current
        if current > self.peak:
            self.peak = current

    def decrease(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def change(self, amount: int) -> None:
        """`increase` or `decrease`, by the sign."""
        if amount > 0:
            self.increase(amount)
        elif amount < 0:
            self.decrease(-amount)

    def start_at(self, amount: int) -> None:
        """Take `amount` as the value from which counting starts."""
        self.current = self.peak = amount
        self.freed = self.reset_freed = 0
        self.reset_allocated = amount

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
    """The statistics of one pool kind. One update method per allocator step keeps the inner loop short."""

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

    def block_handed_out(self, size: int, requested: int) -> None:
        self.allocation.increase(1)
        self.allocated_bytes.increase(size)
        self.active.increase(1)
        self.active_bytes.increase(size)
        self.requested_bytes.increase(requested)

    def block_given_back(self, size: int) -> None:
        """The program freed it; another stream may still use it."""
        self.allocation.decrease(1)
        self.allocated_bytes.decrease(size)

    def block_inactive(self, size: int, requested: int) -> None:
        """No stream uses it any more: it is in the pool again."""
        self.active.decrease(1)
        self.active_bytes.decrease(size)
        self.requested_bytes.decrease(requested)

    def split_changed(self, blocks: int, size: int) -> None:
        self.inactive_split.change(blocks)
        self.inactive_split_bytes.change(size)

    def items(self) -> list[tuple[str, Stat]]:
        return [(name, getattr(self, name)) for name in self.__slots__]


class Statistics:
    """All statistics of one device."""

    __slots__ = (
        "all",
        "large_pool",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "num_ooms",
        "num_sync_all_streams",
        "oversize_allocations",
        "oversize_segments",
        "small_pool",
    )

    def __init__(self) -> None:
        self.all, self.small_pool, self.large_pool = Counters(), Counters(), Counters()
        self.oversize_allocations, self.oversize_segments = Stat(), Stat()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0

    def _stats(self) -> list[tuple[str, Stat]]:
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
