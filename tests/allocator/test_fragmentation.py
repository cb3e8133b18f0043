"""Free memory by what it is good for to a request, and what pins it."""

from oomdoc.allocator.config import MIB, parse
from oomdoc.allocator.fragmentation import fit, pinned
from oomdoc.allocator.machine import Allocator


def heap(text=""):
    """30 MiB free whole, 16 MiB free beside a kept 4 MiB, 40 MiB free on another stream, 1 MiB of small blocks."""
    allocator = Allocator(parse(text), 1 << 30)
    kept = allocator.malloc(4 * MIB)
    whole = allocator.malloc(30 * MIB)
    other = allocator.malloc(40 * MIB, stream=3)
    small = allocator.malloc(MIB)
    allocator.free(whole)
    allocator.free(other)
    return allocator, kept, small


def test_the_parts_of_the_cache_sum_to_it():
    allocator, _, _ = heap()
    segments = list(allocator.segments())
    free = allocator.reserved_bytes - allocator.allocated_bytes
    for requested, reusable, releasable in (
        (20 * MIB, 30 * MIB, 40 * MIB),
        (35 * MIB, 0, 70 * MIB),
        (12 * MIB, 46 * MIB, 40 * MIB),
        (1000, MIB, 70 * MIB),
    ):
        found = fit(segments, allocator.config, requested)
        assert (found.reusable, found.releasable) == (reusable, releasable)
        assert found.free == free
        assert found.largest_free_block == 40 * MIB
    assert fit(segments, allocator.config, 35 * MIB).largest_usable_block == 30 * MIB
    assert fit(segments, allocator.config, 35 * MIB, stream=3).reusable == 40 * MIB


def test_what_is_releasable_is_what_emptying_the_cache_gives_back():
    for text in ("", "expandable_segments:True"):
        allocator, _, _ = heap(text)
        before = allocator.reserved_bytes
        found = fit(allocator.segments(), allocator.config, 1 << 40)
        allocator.empty_cache()
        assert before - allocator.reserved_bytes == found.releasable > 0


def test_the_holders_of_nearly_free_segments():
    allocator, kept, small = heap()
    first, second = pinned(allocator.segments())
    assert (first.free, first.live, [block.address for block in first.holders]) == (16 * MIB, 4 * MIB, [kept])
    assert (second.free, [block.address for block in second.holders]) == (MIB, [small])
    assert pinned(allocator.segments(), at_least=2 * MIB) == (first,)
    assert pinned(heap("expandable_segments:True")[0].segments()) == ()
