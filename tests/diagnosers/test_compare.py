"""Two recordings: every byte of the change is in each of the three tables, and rows find their line again."""

from collections.abc import Sequence

import pytest
from oomdoc.diagnosers.compare import DeviceComparison, compare
from oomdoc.diagnosers.interface import Category
from oomdoc.diagnosers.matching import Match, Site, in_function, same_files, sites
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots.model import Snapshot
from oomdoc.snapshots.reader import from_dict

MIB = 2**20
SEGMENT = 1 << 30
Row = tuple[int, str, int, str]  # bytes, file, line, function


def snapshot(rows: Sequence[Row], devices: int = 1) -> Snapshot:
    """A recording whose blocks are allocated in this order by these lines and never freed."""
    segments, traces = [], []
    for device in range(devices):
        events = []
        for number, (size, file, line, function) in enumerate(rows):
            address = (number + 1) * SEGMENT
            frames = [{"filename": file, "line": line, "name": function}]
            segments.append(
                {
                    "device": device, "address": address, "total_size": size, "allocated_size": size,
                    "active_size": size, "requested_size": size, "stream": 0, "segment_type": "large",
                    "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
                    "blocks": [{"address": address, "size": size, "requested_size": size, "state": "active_allocated",
                                "frames": frames}],
                }
            )  # fmt: skip
            event = {"addr": address, "size": size, "stream": 0, "time_us": number, "frames": frames}
            events += [{"action": "segment_alloc", **event}, {"action": "alloc", **event}]
        traces.append(events)
    return from_dict({"segments": segments, "device_traces": traces})


def compared(before: Sequence[Row], after: Sequence[Row]) -> DeviceComparison:
    (device,) = compare(build([snapshot(before)]), build([snapshot(after)])).devices
    assert device.bytes == sum(size for size, *_ in after) - sum(size for size, *_ in before)
    assert sum(row.bytes for row in device.moved) == device.bytes
    assert sum(row.bytes for row in device.categories) == device.bytes
    assert sum(row.bytes for row in device.sizes) == device.bytes
    return device


def told(device: DeviceComparison) -> set[tuple[int | None, int | None, str]]:
    """(line before, line after, how) of every row that changed or moved."""
    return {
        (
            row.before.location.line if row.before and row.before.location else None,
            row.after.location.line if row.after and row.after.location else None,
            row.match.value,
        )
        for row in (*device.moved, *device.renamed)
    }


BASE: list[Row] = [(2 * MIB, "a.py", 5, "f"), (4 * MIB, "a.py", 7, "f"), (6 * MIB, "a.py", 20, "g")]


def test_the_same_recording_has_no_change() -> None:
    """Nothing grew, nothing moved."""
    device = compared(BASE, BASE)
    assert (device.bytes, device.categories, device.moved, device.renamed, device.sizes) == (0, (), (), (), ())


def test_a_doubled_batch_keeps_its_lines() -> None:
    """Also where one line's new size is another's old one."""
    device = compared(BASE, [(2 * size, *where) for size, *where in BASE])
    assert told(device) == {(5, 5, "same-line"), (7, 7, "same-line"), (20, 20, "same-line")}
    assert [(row.before_bytes, row.after_bytes) for row in device.moved] == [
        (6 * MIB, 12 * MIB), (4 * MIB, 8 * MIB), (2 * MIB, 4 * MIB),
    ]  # fmt: skip


def test_a_longer_recording_of_the_same_code_keeps_its_lines() -> None:
    """The shorter one ended before the last line: that row is new, and no other is taken for it."""
    device = compared(BASE[:1], [(2 * size, *where) for size, *where in BASE])
    assert told(device) == {(5, 5, "same-line"), (None, 7, "unmatched"), (None, 20, "unmatched")}


@pytest.mark.parametrize("factor", [1, 2])
def test_lines_that_all_moved_are_found_in_their_function(factor: int) -> None:
    """A comment was put at the top of the file; with the batch doubled at the same time it is seen just so."""
    device = compared(BASE, [(factor * size, file, line + 3, name) for size, file, line, name in BASE])
    assert told(device) == {(5, 8, "same-function"), (7, 10, "same-function"), (20, 23, "same-function")}
    assert len(device.renamed) == (3 if factor == 1 else 0)
    assert device.bytes == (factor - 1) * 12 * MIB


def test_a_line_put_between_is_the_new_one() -> None:
    """Not the last of the function, which only moved down."""
    after = [BASE[0], (8 * MIB, "a.py", 6, "f"), (4 * MIB, "a.py", 9, "f"), BASE[2]]
    device = compared(BASE, after)
    assert [(row.bytes, row.match) for row in device.moved] == [(8 * MIB, Match.NONE)]
    assert told(device) == {(None, 6, "unmatched"), (7, 9, "same-function")}


def test_the_nearest_line_where_only_one_moved() -> None:
    """Another size and another line, in the same function: the row says that it was matched there."""
    after = [(2 * MIB, "a.py", 5, "f"), (5 * MIB, "a.py", 9, "f"), (6 * MIB, "a.py", 20, "g")]
    assert told(compared(BASE, after)) == {(7, 9, "same-function")}


def test_a_renamed_function_is_found_by_its_sizes() -> None:
    """And it is told where it was."""
    after = [(size, file, line, "helper" if name == "g" else name) for size, file, line, name in BASE]
    device = compared(BASE, after)
    (row,) = device.renamed
    assert row.match is Match.SIZES
    assert row.before is not None
    assert row.before.location is not None
    assert row.before.location.function == "g"
    assert device.moved == ()


def test_two_lines_of_the_same_code_are_never_one() -> None:
    """Each recording runs both lines; the one holds the first, the other holds the second."""
    one = [(2 * MIB, "a.py", 5, "f"), (0, "a.py", 9, "f")]
    other = [(0, "a.py", 5, "f"), (2 * MIB, "a.py", 9, "f")]
    both = frozenset({5, 9})
    old = list(sites(build([snapshot(one[:1])]).devices[0]))
    new = list(sites(build([snapshot(other[1:])]).devices[0]))
    assert in_function(old, new, both, both) == []
    assert len(in_function(old, new, frozenset({5}), frozenset({9}))) == 1


def test_another_checkout_is_the_same_file() -> None:
    """By the longest common end of the path; two files of one name are not mixed up."""
    before = ["/home/a/proj/model/net.py", "/home/a/proj/data/net.py", "/same.py"]
    after = ["/ci/build/proj/data/net.py", "/ci/build/proj/model/net.py", "/same.py"]
    some = frozenset({1})
    assert same_files({(file, "f"): some for file in before}, {(file, "f"): some for file in after}) == {
        "/home/a/proj/model/net.py": "/ci/build/proj/model/net.py",
        "/home/a/proj/data/net.py": "/ci/build/proj/data/net.py",
        "/same.py": "/same.py",
    }


def test_a_renamed_file_is_found_by_its_lines() -> None:
    """Where most of them are the same; a file that shares few is another one."""
    device = compared(BASE, [(2 * size, "b.py", line, name) for size, _, line, name in BASE])
    assert told(device) == {(5, 5, "same-function"), (7, 7, "same-function"), (20, 20, "same-function")}
    was = {("a.py", "f"): frozenset({1, 2, 3})}
    assert same_files(was, {("b.py", "f"): frozenset({1, 2, 3, 4})}) == {"a.py": "b.py"}
    assert same_files(was, {("b.py", "f"): frozenset({3, 4, 5, 6})}) == {}


def test_devices_are_compared_one_by_one() -> None:
    """What only one of them has is named, not guessed at; a lone device is compared whatever its number."""
    two, one = build([snapshot(BASE, devices=2)]), build([snapshot(BASE)])
    found = compare(two, one)
    assert [(each.before.device, each.after.device) for each in found.devices] == [(0, 0)]
    assert [each.device for each in found.only_before] == [1]
    assert found.only_after == ()
    ranks = build([snapshot(BASE), snapshot(BASE)])
    assert [(each.before.rank, each.bytes) for each in compare(ranks, ranks).devices] == [(0, 0), (1, 0)]


def test_sites_sum_to_the_live_bytes() -> None:
    """And modules of a kind are one row."""
    profile = build([snapshot([*BASE, BASE[0]])]).devices[0]
    rows = sites(profile)
    assert sum(row.bytes for row in rows) == profile.live_bytes
    assert [row.count for row in rows if row.location and row.location.line == 5] == [2]
    site = Site(category=Category.ACTIVATION, location=None, module="blocks.3.mlp", bytes=1, sizes=((1, 1),))
    assert site.kind == (Category.ACTIVATION, "blocks.*.mlp")
