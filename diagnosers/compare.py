"""What holds more memory than before: two recordings of a job, which may differ in length, batch or code.

Each device is looked at where its profile looks: at its out-of-memory event where there is one, else at its peak.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .interface import Category, DeviceProfile, MemoryProfile
from .matching import Match, Site, code_lines, pair, sites


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One call site in both recordings, or in one of them."""

    before: Site | None
    after: Site | None
    match: Match

    @property
    def before_bytes(self) -> int:
        return self.before.bytes if self.before else 0

    @property
    def after_bytes(self) -> int:
        return self.after.bytes if self.after else 0

    @property
    def bytes(self) -> int:
        """Positive where it grew."""
        return self.after_bytes - self.before_bytes

    @property
    def before_count(self) -> int:
        return self.before.count if self.before else 0

    @property
    def after_count(self) -> int:
        return self.after.count if self.after else 0

    @property
    def site(self) -> Site:
        """As the later recording names it, else the earlier one."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def changed(self) -> bool:
        return self.before is None or self.after is None or self.before.sizes != self.after.sizes

    @property
    def renamed(self) -> bool:
        """It has another line, file, function or module than before."""
        if self.before is None or self.after is None:
            return False
        return (self.before.location, self.before.kind) != (self.after.location, self.after.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryChange:
    category: Category
    before_bytes: int
    after_bytes: int

    @property
    def bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """How many live blocks of one requested size there are."""

    size_bytes: int
    category: Category
    before_count: int
    after_count: int

    @property
    def bytes(self) -> int:
        return self.size_bytes * (self.after_count - self.before_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceComparison:
    """Rows are largest change first, in either direction; what did not change is left out."""

    before: DeviceProfile
    after: DeviceProfile
    categories: tuple[CategoryChange, ...]  # their bytes sum to `bytes`
    moved: tuple[Moved, ...]  # as well
    renamed: tuple[Moved, ...]  # the same blocks at another line: no change, told because it is a judgement
    sizes: tuple[SizeChange, ...]  # their bytes sum to `bytes` as well

    @property
    def bytes(self) -> int:
        return self.after.live_bytes - self.before.live_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Devices that both have. `only_before` and `only_after` could not be compared."""

    devices: tuple[DeviceComparison, ...]
    only_before: tuple[DeviceProfile, ...]
    only_after: tuple[DeviceProfile, ...]


def compare(before: MemoryProfile, after: MemoryProfile) -> Comparison:
    """Devices are the same by rank and index; the only device of each is compared in any case."""
    if len(before.devices) == len(after.devices) == 1:
        return Comparison(
            devices=(compare_devices(before.devices[0], after.devices[0]),), only_before=(), only_after=()
        )
    later = {(device.rank, device.device): device for device in after.devices}
    earlier = {(device.rank, device.device): device for device in before.devices}
    return Comparison(
        devices=tuple(compare_devices(device, later[key]) for key, device in earlier.items() if key in later),
        only_before=tuple(device for key, device in earlier.items() if key not in later),
        only_after=tuple(device for key, device in later.items() if key not in earlier),
    )


def compare_devices(before: DeviceProfile, after: DeviceProfile) -> DeviceComparison:
    """The change of one device."""
    pairs = pair(
        sites(before),
        sites(after),
        code_lines(before.snapshot.stacks.frames),
        code_lines(after.snapshot.stacks.frames),
    )
    rows = [Moved(before=old, after=new, match=match) for old, new, match in pairs]
    return DeviceComparison(
        before=before,
        after=after,
        categories=_categories(before, after),
        moved=_largest_first([row for row in rows if row.changed]),
        renamed=tuple(sorted((row for row in rows if row.renamed and not row.changed), key=_by_after_bytes)),
        sizes=_sizes(before, after),
    )


def _largest_first(rows: Sequence[Moved]) -> tuple[Moved, ...]:
    return tuple(sorted(rows, key=lambda row: (-abs(row.bytes), -row.after_bytes)))


def _by_after_bytes(row: Moved) -> int:
    return -row.after_bytes


def _categories(before: DeviceProfile, after: DeviceProfile) -> tuple[CategoryChange, ...]:
    rows = [
        CategoryChange(category=each, before_bytes=before.bytes_of(each), after_bytes=after.bytes_of(each))
        for each in Category
    ]
    return tuple(sorted((row for row in rows if row.bytes), key=lambda row: -abs(row.bytes)))


def _sizes(before: DeviceProfile, after: DeviceProfile) -> tuple[SizeChange, ...]:
    old, new = (Counter((b.requested_bytes, b.category) for b in side.live) for side in (before, after))
    rows = [
        SizeChange(size_bytes=size, category=category, before_count=old[key], after_count=new[key])
        for key in old.keys() | new.keys()
        if old[key] != new[key]
        for size, category in (key,)
    ]
    return tuple(sorted(rows, key=lambda row: (-abs(row.bytes), -row.size_bytes, row.category.value)))
