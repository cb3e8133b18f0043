"""The caching allocator at its default settings: the hand-derived vectors of PyTorch's rules, and the event order."""

import threading

import pytest
from oomdoc.allocator.config import MIB, AllocatorConfig
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.snapshots.model import Action, BlockState

GIB = 1 << 30


class Log(list):
    def __call__(self, action, address, size, stream):
        self.append((action, address, size, stream))

    def actions(self):
        return [entry[0] for entry in self]


def test_one_byte_takes_a_small_segment():
    """A request of 1 B is a 512 B block in a 2 MiB segment."""
    allocator = Allocator(capacity_bytes=GIB)
    address = allocator.malloc(1)
    assert allocator.block_size(address) == 512
    assert allocator.reserved_bytes == 2 * MIB
    assert allocator.memory_stats()["requested_bytes.all.current"] == 1


def test_small_and_large_pool_border():
    """1 MiB is small; one byte more rounds up past it and splits a 20 MiB segment."""
    allocator = Allocator(capacity_bytes=GIB)
    allocator.malloc(MIB)
    assert allocator.reserved_bytes == 2 * MIB
    address = allocator.malloc(MIB + 1)
    assert allocator.block_size(address) == 1_049_088
    assert allocator.reserved_bytes == 22 * MIB
    segment = next(segment for segment in allocator.segments() if segment.large)
    assert [block.size for block in segment.blocks] == [1_049_088, 19_922_432]


def test_ten_mib_gets_its_own_segment():
    """10 MiB takes exactly 10 MiB; one byte more takes 12 MiB and splits."""
    allocator = Allocator(capacity_bytes=GIB)
    allocator.malloc(10 * MIB)
    assert allocator.reserved_bytes == 10 * MIB
    address = allocator.malloc(10 * MIB + 1)
    assert allocator.reserved_bytes == 22 * MIB
    assert allocator.block_size(address) == 10_486_272


def test_an_unsplit_rest_counts_as_allocated():
    """A rest of 1 MiB or less stays with the block in the large pool, and counts."""
    allocator = Allocator(capacity_bytes=GIB)
    address = allocator.malloc(12 * MIB)
    allocator.free(address)
    assert allocator.malloc(10 * MIB + MIB // 2) == address
    assert allocator.allocated_bytes == 10 * MIB + MIB // 2
    allocator.free(address)
    assert allocator.malloc(11 * MIB) == address
    assert allocator.allocated_bytes == 12 * MIB


def test_another_stream_never_serves_a_request():
    """Free blocks of another stream are not used, but given back before the program runs out of memory."""
    log = Log()
    allocator = Allocator(capacity_bytes=100 * MIB, emit=log)
    first = allocator.malloc(64 * MIB, stream=7)
    allocator.free(first)
    second = allocator.malloc(32 * MIB, stream=0)
    assert allocator.reserved_bytes == 96 * MIB
    log.clear()
    allocator.malloc(48 * MIB, stream=0)
    assert log.actions() == [Action.SEGMENT_FREE, Action.SEGMENT_ALLOC, Action.ALLOC]
    assert log[0][1:] == (first, 64 * MIB, 7)
    assert allocator.memory_stats()["num_alloc_retries"] == 1
    assert allocator.block_size(second) == 32 * MIB


def test_best_fit_takes_the_smallest_then_the_lowest():
    allocator = Allocator(capacity_bytes=GIB)
    addresses = [allocator.malloc(size * MIB) for size in (40, 30, 30, 50)]
    for address in reversed(addresses):
        allocator.free(address)
    assert allocator.malloc(30 * MIB - 1) == addresses[1]
    assert allocator.malloc(30 * MIB - 1) == addresses[2]
    assert allocator.malloc(30 * MIB) == addresses[0]


def test_freed_neighbours_merge():
    allocator = Allocator(capacity_bytes=GIB)
    addresses = [allocator.malloc(4 * MIB) for _ in range(5)]
    assert allocator.reserved_bytes == 20 * MIB
    for index in (0, 2, 1, 4, 3):
        allocator.free(addresses[index])
    (segment,) = allocator.segments()
    assert [(block.size, block.state) for block in segment.blocks] == [(20 * MIB, BlockState.INACTIVE)]
    assert allocator.memory_stats()["inactive_split_bytes.all.current"] == 0


def test_the_event_order_of_malloc_and_free():
    log = Log()
    allocator = Allocator(capacity_bytes=GIB, emit=log)
    address = allocator.malloc(1000)
    allocator.free(address)
    assert log == [
        (Action.SEGMENT_ALLOC, address, 2 * MIB, 0),
        (Action.ALLOC, address, 1000, 0),
        (Action.FREE_REQUESTED, address, 1000, 0),
        (Action.FREE_COMPLETED, address, 1000, 0),
    ]


def test_a_block_used_by_another_stream_stays_active_until_the_next_malloc():
    log = Log()
    allocator = Allocator(capacity_bytes=GIB, emit=log)
    address = allocator.malloc(4 * MIB)
    allocator.record_stream(address, 3)
    allocator.record_stream(address, 0)
    allocator.free(address)
    stats = allocator.memory_stats()
    assert (stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]) == (0, 4 * MIB)
    (segment,) = allocator.segments()
    assert segment.blocks[0].state is BlockState.ACTIVE_PENDING_FREE
    log.clear()
    assert allocator.malloc(4 * MIB) == address
    assert log.actions() == [Action.FREE_COMPLETED, Action.ALLOC]


def test_deferred_streams_wait_for_the_caller_or_for_a_retry():
    log = Log()
    allocator = Allocator(capacity_bytes=32 * MIB, emit=log)
    allocator.defer_streams = True
    address = allocator.malloc(20 * MIB)
    allocator.record_stream(address, 3)
    allocator.record_stream(address, 4)
    allocator.free(address)
    assert allocator.malloc(12 * MIB) != address
    log.clear()
    allocator.malloc(20 * MIB)
    assert log.actions() == [Action.FREE_COMPLETED, Action.SEGMENT_FREE, Action.SEGMENT_ALLOC, Action.ALLOC]


def test_out_of_memory_after_every_retry():
    """The oom event carries the rounded request and the driver's free bytes; the error what PyTorch prints."""
    log = Log()
    allocator = Allocator(capacity_bytes=50 * MIB, emit=log)
    allocator.malloc(20 * MIB)
    allocator.free(allocator.malloc(24 * MIB))
    log.clear()
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(31 * MIB - 100)
    assert log.actions() == [Action.SEGMENT_FREE, Action.OOM]
    assert log[-1] == (Action.OOM, 30 * MIB, 31 * MIB, 0)
    error = caught.value
    assert (error.requested, error.rounded, error.tried) == (31 * MIB - 100, 31 * MIB, 32 * MIB)
    assert (error.device_free, error.allocated, error.reserved) == (30 * MIB, 20 * MIB, 20 * MIB)
    stats = allocator.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
    assert allocator.malloc(20 * MIB) > 0


def test_empty_cache_keeps_split_segments():
    allocator = Allocator(capacity_bytes=GIB)
    kept = allocator.malloc(4 * MIB)
    allocator.free(allocator.malloc(4 * MIB))
    allocator.free(allocator.malloc(64 * MIB))
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_statistics_by_pool_and_their_resets():
    allocator = Allocator(capacity_bytes=GIB)
    small, large = allocator.malloc(1000), allocator.malloc(4 * MIB)
    allocator.free(large)
    stats = allocator.memory_stats()
    assert stats["allocated_bytes.small_pool.current"] == 1024
    assert stats["allocated_bytes.large_pool.peak"] == 4 * MIB
    assert stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"] == 1024
    assert stats["segment.all.current"] == 2
    assert stats["inactive_split.small_pool.current"] == 1
    assert stats["inactive_split_bytes.all.current"] == 2 * MIB - 1024
    assert stats["max_split_size"] == -1
    assert list(stats) == sorted(stats)
    allocator.reset_peak()
    assert allocator.memory_stats()["allocated_bytes.all.peak"] == 1024
    allocator.reset_accumulated()
    allocator.free(small)
    stats = allocator.memory_stats()
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (0, 1)
    assert stats["inactive_split_bytes.all.current"] == 0


def test_what_is_not_allocated_cannot_be_freed():
    allocator = Allocator(capacity_bytes=GIB)
    address = allocator.malloc(1)
    allocator.free(address)
    with pytest.raises(ValueError, match="not the address of an allocated block"):
        allocator.free(address)
    with pytest.raises(ValueError, match="positive size"):
        allocator.malloc(0)


def test_addresses_are_deterministic_aligned_and_disjoint():
    def run():
        allocator = Allocator(capacity_bytes=GIB)
        first = [allocator.malloc(size * MIB) for size in (30, 40, 50)]
        allocator.free(first[1])
        allocator.empty_cache()
        return [*first, allocator.malloc(11 * MIB), allocator.malloc(60 * MIB), allocator.malloc(29 * MIB)]

    addresses = run()
    assert addresses == run()
    assert addresses[0] == 0x7F0000000000
    assert all(address % (2 * MIB) == 0 for address in addresses)
    assert addresses[3] == addresses[1]


def test_memory_fraction_limits_reserved_bytes():
    """A fraction of exactly 1.0 sets no limit; a smaller one fails without asking the driver."""
    allocator = Allocator(AllocatorConfig(memory_fraction=0.5), capacity_bytes=GIB, total_bytes=GIB)
    allocator.malloc(512 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(1)
    assert (caught.value.device_free, caught.value.allowed) == (512 * MIB, 512 * MIB)
    allocator.set_memory_fraction(1.0)
    assert allocator.malloc(1) > 0


def test_another_thread_may_ask_for_statistics_while_blocks_are_handed_out():
    allocator = Allocator(capacity_bytes=GIB)
    done, wrong = threading.Event(), []

    def ask():
        while not done.is_set():
            stats = allocator.memory_stats()
            if stats["allocation.all.current"] not in (0, 1) or allocator.peak_allocated_bytes > 1024:
                wrong.append(stats)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(20_000):
        allocator.free(allocator.malloc(1000))
    done.set()
    asking.join()
    assert wrong == []
    stats = allocator.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 20_000
    assert stats["allocated_bytes.all.peak"] == 1024
