"""What the allocator asks of the CUDA driver: memory and addresses."""

from bisect import bisect_left, insort
from typing import Protocol

from .config import MIB

FIRST_ADDRESS = 0x7F0000000000
GRANULE = 2 * MIB  # cudaMalloc hands out, and aligns to, 2 MiB granules


class Driver(Protocol):
    """The memory of one device, as one process can get it. Sizes are bytes; None or False = out of memory."""

    def free_bytes(self) -> int:
        """What cudaMemGetInfo would call free."""

    def malloc(self, size: int) -> int | None:
        """cudaMalloc: the address of `size` new bytes."""

    def free(self, address: int, size: int) -> None:
        """cudaFree: give back what `malloc` returned."""

    def reserve(self, size: int) -> int:
        """cuMemAddressReserve: the start of a range of addresses without memory."""

    def release(self, address: int, size: int) -> None:
        """Give back what `reserve` returned."""

    def map(self, address: int, size: int) -> bool:
        """cuMemCreate and cuMemMap: put memory behind a part of a reserved range."""

    def unmap(self, address: int, size: int) -> None:
        """Take that memory away again."""


class VirtualDriver:
    """A driver with `capacity_bytes` for this process and synthetic, deterministic addresses.

    Addresses are 2 MiB aligned, from `first_address` upward; freed ranges are used again, lowest fitting range first.
    `used_bytes` are in use before the first call.
    """

    def __init__(self, capacity_bytes: int, first_address: int = FIRST_ADDRESS, used_bytes: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = used_bytes
        self._top = _granules(first_address)
        self._holes: list[tuple[int, int]] = []  # (address, size) below the top, sorted, never adjacent

    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes

    def malloc(self, size: int) -> int | None:
        return self.reserve(size) if self._take(size) else None

    def free(self, address: int, size: int) -> None:
        self._give_back(size)
        self.release(address, size)

    def map(self, address: int, size: int) -> bool:
        return self._take(size)

    def unmap(self, address: int, size: int) -> None:
        self._give_back(size)

    def _take(self, size: int) -> bool:
        taken = _granules(size)
        if self.used_bytes + taken > self.capacity_bytes:
            return False
        self.used_bytes += taken
        return True

    def _give_back(self, size: int) -> None:
        self.used_bytes -= _granules(size)

    def reserve(self, size: int) -> int:
        size = _granules(size)
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
        size = _granules(size)
        index = bisect_left(self._holes, (address, size))
        if index < len(self._holes) and address + size == self._holes[index][0]:
            size += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == address:
            address, before = self._holes.pop(index - 1)
            size += before
        if address + size == self._top:
            self._top = address
        else:
            insort(self._holes, (address, size))


def _granules(size: int) -> int:
    return -(-size // GRANULE) * GRANULE
