"""Blocks of device memory and the pools that keep the free ones."""

from bisect import bisect_left, insort
from dataclasses import dataclass

from .config import MIN_BLOCK

ADDRESS_BITS = 80  # recorded addresses have 64; a replay needs some beyond them
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
UNLIMITED = 1 << 63
FREE, ALLOCATED, PENDING, UNMAPPED = range(4)  # PENDING: freed by the program, other streams may still use it
PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


@dataclass(frozen=True, slots=True)
class ExpandableSegment:
    """A reserved address range that gets its memory page by page."""

    address: int
    size: int
    page: int


class Block:
    """A piece of one segment. `prev` and `next` are its neighbours there, in address order.

    While its state is FREE it is in the free list of its pool, while UNMAPPED (a part of an expandable segment without
    memory) in the pool's `unmapped`; otherwise in neither.
    """

    __slots__ = ("address", "expandable", "next", "pool", "pooled_at", "prev", "requested", "size", "state", "stream")

    def __init__(self, address: int, size: int, stream: int, pool: "Pool") -> None:
        self.address = address
        self.size = size  # bytes of the block, at least `requested` rounded up
        self.requested = 0  # bytes that were asked for; stale once free
        self.stream = stream
        self.pool = pool
        self.prev: Block | None = None
        self.next: Block | None = None
        self.state = FREE
        self.expandable: ExpandableSegment | None = None
        self.pooled_at = 0  # pool.searches when it became free: its age for garbage collection

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def in_use(self) -> bool:
        """By the program, or still by another stream."""
        return self.state in (ALLOCATED, PENDING)


class Pool:
    """Free blocks of one kind (small or large) of one pool id, per stream ordered by (size, address)."""

    __slots__ = ("free", "large", "min_rest", "page", "pool_id", "searches", "split_below", "unmapped")

    def __init__(self, pool_id: PoolId, large: bool, page: int) -> None:
        self.pool_id = pool_id
        self.large = large
        self.page = page  # bytes of one page of an expandable segment
        self.min_rest = MIN_BLOCK  # a rest of at least this many bytes is split off
        self.split_below = UNLIMITED  # only requests below this split a block
        self.free: dict[int, list[int]] = {}  # stream -> sorted size << ADDRESS_BITS | address
        self.unmapped: dict[int, list[int]] = {}  # stream -> sorted addresses of expandable blocks without memory
        self.searches = 0  # searches for a free block: the clock of garbage collection

    def add(self, block: Block) -> None:
        block.pooled_at = self.searches
        key = block.size << ADDRESS_BITS | block.address
        keys = self.free.get(block.stream)
        if keys is None:
            self.free[block.stream] = [key]
        else:
            insort(keys, key)

    def remove(self, block: Block) -> None:
        keys = self.free[block.stream]
        del keys[bisect_left(keys, block.size << ADDRESS_BITS | block.address)]

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped.setdefault(block.stream, []), block.address)

    def remove_unmapped(self, block: Block) -> None:
        self.unmapped[block.stream].remove(block.address)

    def addresses(self) -> list[int]:
        """Addresses of all free blocks in PyTorch's set order: by stream, size, address."""
        return [key & ADDRESS_MASK for stream in sorted(self.free) for key in self.free[stream]]
