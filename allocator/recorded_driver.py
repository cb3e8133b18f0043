"""A driver that answers as the recorded one did."""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

from ..snapshots.model import Action
from .config import SMALL_BUFFER

UNKNOWN_MEMORY = 1 << 70  # addresses from here on were not recorded: the model asked where PyTorch did not
GIVES_BACK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(slots=True)
class RecordedDriver:
    """Answers as the recorded driver did: from the segment events that belong to the request at hand."""

    upcoming: deque[tuple[int, int, int, int]] = field(default_factory=deque)  # action, address, size, event
    segments: list[tuple[int, int]] = field(default_factory=list)  # sorted (start, end) of recorded segments
    reserved: dict[int, tuple[int, tuple[int, bool]]] = field(default_factory=dict)  # ranges: size, stream and pool
    maps: list[tuple[int, ...]] = field(default_factory=list)  # all segment_map events: event, address, size, stream
    event: int = 0  # the first event that belongs to the request at hand
    owner: tuple[int, bool] = (0, False)  # its stream, and whether it uses the large pool
    fails: bool = False  # it ran out of memory
    next_unknown: int = UNKNOWN_MEMORY

    def free_bytes(self) -> int:
        return 0

    def _fails_first(self) -> bool:
        """The recording shows memory given back, or the end, where the model asks for new memory."""
        if not self.upcoming:
            return self.fails
        return self.upcoming[0][0] in GIVES_BACK

    def malloc(self, size: int) -> int | None:
        if self._fails_first():
            return None
        if self.upcoming and self.upcoming[0][0] == Action.SEGMENT_ALLOC:
            address = self.upcoming[0][1]
            index = bisect_left(self.segments, (address + size, 0)) - 1
            if index < 0 or self.segments[index][1] <= address:
                insort(self.segments, (address, address + size))
                return address
        self.next_unknown += size
        return self.next_unknown - size

    def free(self, address: int, size: int) -> None:
        if address < UNKNOWN_MEMORY:
            self.segments.remove((address, address + size))

    def reserve(self, size: int) -> int:
        """A range begins where the next pages outside every known range are mapped for the same stream and pool."""
        address = self.next_unknown
        for index in range(bisect_left(self.maps, (self.event,)), len(self.maps)):
            _, mapped, pages, stream = self.maps[index]
            if (stream, pages > SMALL_BUFFER) == self.owner and self._is_unreserved(mapped, size):
                address = mapped
                break
        else:
            self.next_unknown += size
        self.reserved[address] = (size, self.owner)
        return address

    def _is_unreserved(self, address: int, size: int) -> bool:
        return all(address + size <= start or start + room <= address for start, (room, _) in self.reserved.items())

    def needs_dropped_range(self, address: int, size: int) -> bool:
        """Whether pages at `address` lie in no range of their owner, and a new one of `size` there has no place yet."""
        own = any(
            start <= address < start + room and owner == self.owner for start, (room, owner) in self.reserved.items()
        )
        return not own and not self._is_unreserved(address, size)

    def release(self, address: int, size: int) -> None:
        del self.reserved[address]

    def map(self, address: int, size: int) -> bool:
        return not self._fails_first()

    def unmap(self, address: int, size: int) -> None:
        return None
