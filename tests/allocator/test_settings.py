"""One hand-derived case, or more, for every allocator setting, and for private pools."""

import pytest
from oomdoc.allocator.config import MIB, parse
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.snapshots.model import Action, BlockState

GIB = 1 << 30


class Log(list):
    def __call__(self, action, address, size, stream):
        self.append((action, address, size, stream))

    def actions(self):
        return [entry[0] for entry in self]


def allocator_with(text, capacity=GIB, **options):
    log = Log()
    return Allocator(parse(text), capacity, log, **options), log


def test_expandable_maps_pages_and_fills_the_free_tail():
    """1 MiB + 512 B maps one 20 MiB page; 30 MiB more needs 11 534 848 B behind the tail: one page again."""
    allocator, log = allocator_with("expandable_segments:True")
    first = allocator.malloc(MIB + 512)
    assert log == [(Action.SEGMENT_MAP, first, 20 * MIB, 0), (Action.ALLOC, first, MIB + 512, 0)]
    assert allocator.block_size(first) == 1_049_088
    log.clear()
    second = allocator.malloc(30 * MIB)
    assert second == first + 1_049_088
    assert log[0] == (Action.SEGMENT_MAP, first + 20 * MIB, 20 * MIB, 0)
    assert allocator.reserved_bytes == 40 * MIB
    stats = allocator.memory_stats()
    assert stats["segment.all.current"] == 0
    assert stats["inactive_split_bytes.all.peak"] == 0
    assert stats["num_device_alloc"] == 2
    (segment,) = allocator.segments()
    assert segment.expandable
    assert [block.size for block in segment.blocks] == [1_049_088, 30 * MIB, 40 * MIB - 1_049_088 - 30 * MIB]


def test_expandable_small_pages_are_2_mib_and_split_at_512():
    allocator, log = allocator_with("expandable_segments:True")
    allocator.malloc(MIB)
    last = allocator.malloc(MIB - 512)
    assert allocator.reserved_bytes == 2 * MIB
    (segment,) = allocator.segments()
    assert segment.blocks[-1].size == 512
    assert allocator.malloc(512) == last + MIB - 512
    assert log.actions().count(Action.SEGMENT_MAP) == 1


def test_expandable_gives_back_whole_free_pages_before_out_of_memory():
    """A free range between two live blocks gives its whole pages back, and a request maps them at its end."""
    allocator, log = allocator_with("expandable_segments:True", 120 * MIB, total_bytes=GIB)
    first = allocator.malloc(10 * MIB)
    middle = allocator.malloc(60 * MIB)
    allocator.malloc(10 * MIB)
    allocator.free(middle)
    log.clear()
    got = allocator.malloc(65 * MIB)
    assert log == [
        (Action.SEGMENT_UNMAP, first + 20 * MIB, 40 * MIB, 0),
        (Action.SEGMENT_MAP, first + 80 * MIB, 80 * MIB, 0),
        (Action.ALLOC, got, 65 * MIB, 0),
    ]
    assert got == first + 80 * MIB
    assert allocator.memory_stats()["num_alloc_retries"] == 1


def test_expandable_takes_a_second_range_when_the_first_has_no_room():
    """A range of addresses is 9/8 of the device, in whole pages: 7 pages of 20 MiB for 120 MiB."""
    allocator, log = allocator_with("expandable_segments:True", 120 * MIB)
    first = allocator.malloc(10 * MIB)
    middle = allocator.malloc(60 * MIB)
    allocator.malloc(10 * MIB)
    allocator.free(middle)
    assert allocator.malloc(65 * MIB) == first + 140 * MIB
    assert log.actions()[-3:] == [Action.SEGMENT_UNMAP, Action.SEGMENT_MAP, Action.ALLOC]


def test_expandable_fills_the_lowest_hole_first():
    allocator, log = allocator_with("expandable_segments:True")
    first = allocator.malloc(20 * MIB)
    middle = allocator.malloc(40 * MIB)
    allocator.malloc(20 * MIB)
    allocator.free(middle)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 40 * MIB
    assert len(list(allocator.segments())) == 2
    log.clear()
    assert allocator.malloc(30 * MIB) == first + 20 * MIB
    assert log[0] == (Action.SEGMENT_MAP, first + 20 * MIB, 40 * MIB, 0)
    assert len(list(allocator.segments())) == 1


def test_expandable_drops_an_empty_segment():
    allocator, log = allocator_with("expandable_segments:True")
    allocator.free(allocator.malloc(64 * MIB))
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert list(allocator.segments()) == []
    assert log.actions()[-1] is Action.SEGMENT_UNMAP


def test_expandable_prefers_a_block_that_cannot_grow():
    """The last free block counts as large as it can become, so a larger one between live blocks is taken."""
    allocator, _ = allocator_with("expandable_segments:True")
    hole = allocator.malloc(40 * MIB)
    allocator.malloc(10 * MIB)
    tail = allocator.malloc(30 * MIB)
    allocator.free(hole)
    allocator.free(tail)
    assert allocator.malloc(25 * MIB) == hole


def test_expandable_runs_out_of_memory_in_pages():
    allocator, log = allocator_with("expandable_segments:True", 50 * MIB)
    allocator.malloc(30 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(11 * MIB)
    assert log[-1] == (Action.OOM, 10 * MIB, 11 * MIB, 0)
    assert caught.value.tried == 12 * MIB
    assert allocator.malloc(10 * MIB) > 0


def test_max_split_size_keeps_large_blocks_whole():
    """Blocks from the limit on are not split, and not given to requests below it."""
    allocator, _ = allocator_with("max_split_size_mb:64")
    large = allocator.malloc(80 * MIB)
    assert allocator.memory_stats()["oversize_allocations.current"] == 1
    allocator.free(large)
    small = allocator.malloc(30 * MIB)
    assert small != large
    assert allocator.malloc(70 * MIB) == large
    assert allocator.block_size(large) == 80 * MIB
    stats = allocator.memory_stats()
    assert stats["max_split_size"] == 64 * MIB
    assert (stats["oversize_segments.current"], stats["oversize_allocations.allocated"]) == (1, 2)


def test_max_non_split_rounding_limits_what_an_oversize_block_may_waste():
    allocator, _ = allocator_with("max_split_size_mb:64")
    large = allocator.malloc(100 * MIB)
    allocator.free(large)
    assert allocator.malloc(80 * MIB) != large
    allocator, _ = allocator_with("max_split_size_mb:64,max_non_split_rounding_mb:40")
    large = allocator.malloc(100 * MIB)
    allocator.free(large)
    assert allocator.malloc(80 * MIB) == large


def test_max_split_size_frees_one_oversize_block_before_everything():
    """The retry frees the smallest sufficient oversize block of the stream, and nothing else."""
    allocator, log = allocator_with("max_split_size_mb:64", 400 * MIB)
    blocks = [allocator.malloc(size * MIB) for size in (200, 120, 40)]
    for block in blocks:
        allocator.free(block)
    log.clear()
    allocator.malloc(90 * MIB)
    assert log[0] == (Action.SEGMENT_FREE, blocks[1], 120 * MIB, 0)
    assert log.actions() == [Action.SEGMENT_FREE, Action.SEGMENT_ALLOC, Action.ALLOC]
    assert allocator.memory_stats()["num_alloc_retries"] == 0


def test_max_split_size_frees_several_oversize_blocks_largest_first():
    allocator, log = allocator_with("max_split_size_mb:64", 300 * MIB)
    blocks = [allocator.malloc(size * MIB) for size in (80, 90, 100, 30)]
    for block in blocks:
        allocator.free(block)
    log.clear()
    allocator.malloc(180 * MIB)
    assert [entry[1] for entry in log[:2]] == [blocks[2], blocks[1]]
    assert log.actions() == [Action.SEGMENT_FREE, Action.SEGMENT_FREE, Action.SEGMENT_ALLOC, Action.ALLOC]


def test_garbage_collection_frees_old_blocks_above_the_threshold():
    """Of two cached segments only the one of at least average age goes, before the driver is asked."""
    allocator, log = allocator_with(
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9", 1000 * MIB, total_bytes=1000 * MIB
    )
    old = allocator.malloc(300 * MIB)
    allocator.free(old)
    young = allocator.malloc(400 * MIB)
    allocator.free(young)
    log.clear()
    allocator.malloc(410 * MIB)
    assert log[0] == (Action.SEGMENT_FREE, old, 300 * MIB, 0)
    assert log.actions() == [Action.SEGMENT_FREE, Action.SEGMENT_ALLOC, Action.ALLOC]
    assert allocator.memory_stats()["num_alloc_retries"] == 0


def test_garbage_collection_does_nothing_without_a_fraction():
    allocator, log = allocator_with("garbage_collection_threshold:0.1")
    allocator.free(allocator.malloc(300 * MIB))
    allocator.malloc(310 * MIB)
    assert Action.SEGMENT_FREE not in log.actions()


def test_roundup_divisions_change_the_block():
    allocator, _ = allocator_with("roundup_power2_divisions:4", 4 * GIB)
    address = allocator.malloc(1200 * MIB)
    assert allocator.block_size(address) == 1280 * MIB
    stats = allocator.memory_stats()
    assert stats["requested_bytes.all.current"] == 1200 * MIB
    assert stats["allocated_bytes.all.current"] == 1280 * MIB


def test_large_segment_size_changes_the_segment_and_the_page():
    allocator, _ = allocator_with("large_segment_size_mb:40")
    allocator.malloc(3 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.malloc(10 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    allocator, _ = allocator_with("large_segment_size_mb:40,expandable_segments:True")
    allocator.malloc(41 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


def test_a_private_pool_keeps_its_memory_until_released():
    allocator, _ = allocator_with("")
    pool = (0, 1)
    allocator.begin_allocate_to_pool(pool)
    inside = allocator.malloc(30 * MIB)
    allocator.end_allocate_to_pool(pool)
    allocator.free(inside)
    assert allocator.private_pool_free_bytes == 30 * MIB
    assert allocator.malloc(30 * MIB) != inside
    allocator.empty_cache()
    segments = list(allocator.segments())
    assert [segment.pool_id for segment in segments] == [pool, (0, 0)]
    allocator.release_pool(pool)
    allocator.empty_cache()
    assert [segment.pool_id for segment in allocator.segments()] == [(0, 0)]


def test_a_capture_serves_its_streams_only_and_defers_cross_stream_frees():
    allocator, log = allocator_with("")
    allocator.begin_allocate_to_pool((1, 0), lambda stream: stream == 5)
    captured = allocator.malloc(4 * MIB, stream=5)
    eager = allocator.malloc(4 * MIB, stream=0)
    allocator.record_stream(captured, 6)
    allocator.free(captured)
    assert allocator.malloc(4 * MIB, stream=5) != captured
    assert Action.FREE_COMPLETED not in log.actions()
    (of_pool, default) = sorted(allocator.segments(), key=lambda segment: segment.stream, reverse=True)
    assert (of_pool.pool_id, default.pool_id) == ((1, 0), (0, 0))
    assert of_pool.blocks[0].state is BlockState.ACTIVE_PENDING_FREE
    allocator.end_allocate_to_pool((1, 0))
    allocator.free(eager)
    allocator.malloc(1, stream=0)
    assert (Action.FREE_COMPLETED, captured, 4 * MIB, 5) in log


def test_no_retry_while_a_capture_is_underway():
    """cudaFree is not allowed during a capture: what is cached stays, and the request fails."""
    allocator, log = allocator_with("", 64 * MIB)
    allocator.free(allocator.malloc(40 * MIB))
    allocator.begin_allocate_to_pool((1, 0))
    with pytest.raises(OutOfMemory):
        allocator.malloc(30 * MIB)
    assert log.actions()[-1] is Action.OOM
    allocator.empty_cache()
    assert Action.SEGMENT_FREE not in log.actions()
    allocator.end_allocate_to_pool((1, 0))
    allocator.empty_cache()
    assert log.actions()[-1] is Action.SEGMENT_FREE
