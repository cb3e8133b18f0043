"""What the allocator asks of the CUDA driver: memory and addresses."""

from bisect import insort
from typing import Protocol

from .config import MIB

FIRST_ADDRESS = 0x7F0000000000
GRANULE = 2 * MIB  # cudaMalloc hands out, and aligns to, 2 MiB granules


class Driver(Protocol):
    """The memory of one device, as one process can get it."""

    def free_bytes(self) -> int:
        """What cudaMemGetInfo would call free."""

    def malloc(self, size: int) -> int | None:
        """Address of `size` new bytes; None = out of memory."""

    def free(self, address: int, size: int) -> None:
        """Give back what `malloc` returned."""


class VirtualDriver:
    """A driver with `capacity_bytes` for this process and synthetic, deterministic addresses.

    Addresses are 2 MiB aligned, from 0x7f0000000000 upward; freed ranges are used again, lowest fitting range first.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._top = FIRST_ADDRESS
        self._holes: list[tuple[int, int]] = []  # (address, size), sorted, never adjacent

    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes

    def malloc(self, size: int) -> int | None:
        taken = -(-size // GRANULE) * GRANULE
        if self.used_bytes + taken > self.capacity_bytes:
            return None
        self.used_bytes += taken
        return self.reserve(taken)

    def free(self, address: int, size: int) -> None:
        taken = -(-size // GRANULE) * GRANULE
        self.used_bytes -= taken
        self.release(address, taken)

    def reserve(self, size: int) -> int:
        """Take a range of addresses; no memory."""
        for index, (address, room) in enumerate(self._holes):
            if room >= size:
                if room == size:
                    del self._holes[index]
                else:
                    self._holes[index] = (address + size, room - size)
                return address
        address = self._top
        self._top += size
        return address

    def release(self, address: int, size: int) -> None:
        """Give a range of addresses back."""
        insort(self._holes, (address, size))
        index = next(i for i, hole in enumerate(self._holes) if hole[0] == address)
        if index + 1 < len(self._holes) and address + size == self._holes[index + 1][0]:
            size += self._holes.pop(index + 1)[1]
        if index and sum(self._holes[index - 1]) == address:
            address, before = self._holes[index - 1]
            size += before
            del self._holes[index]
            index -= 1
        self._holes[index] = (address, size)
        if address + size == self._top:
            self._top = address
            del self._holes[index]
