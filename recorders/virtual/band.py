"""What the estimates of a run leave open about the peak of a device."""


class Band:
    """What the highest allocated bytes of a device would be, if every estimate were the least or the most it can be."""

    __slots__ = ("_above", "_allocated", "_below", "_low_before", "_spans", "brief", "high", "low")

    def __init__(self) -> None:
        self.low = self.high = 0  # bytes
        self.brief = 0  # reserved bytes that a library may have gone up to for a moment, where it makes do with less
        self._below = self._above = 0  # of the estimates that are alive
        self._low_before = self._allocated = 0  # the low end before the last allocation, and the bytes after it
        self._spans: dict[int, tuple[int, int]] = {}  # address -> (bytes less, bytes more)

    def at(self, allocated: int) -> None:
        """After each allocation."""
        self._low_before, self._allocated = self.low, allocated
        low, high = allocated - self._below, allocated + self._above
        if low > self.low:
            self.low = low
        if high > self.high:
            self.high = high

    def came(self, address: int, less: int, more: int) -> None:
        """The allocation that comes next is an estimate, and can be so many bytes less and more."""
        self._spans[address] = less, more
        self._below += less
        self._above += more

    def was(self, address: int, less: int, more: int) -> None:
        """The last allocation is known for an estimate only now."""
        self.came(address, less, more)
        self.low = self._low_before
        self.at(self._allocated)

    def might(self, allocated: int, more: int) -> None:
        """Nothing was allocated for something that can take so many bytes, while it runs."""
        self.high = max(self.high, allocated + self._above + more)

    def gone(self, address: int) -> None:
        if self._spans and address in self._spans:
            less, more = self._spans.pop(address)
            self._below -= less
            self._above -= more
