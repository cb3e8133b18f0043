"""Figures that several renderers show and that are sums over a profile."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..diagnosers.call_sites import like_module
from ..diagnosers.interface import CallSite, DeviceProfile, MemoryProfile
from .text import category_title, short_path, size


@dataclass(frozen=True, slots=True)
class Part:
    """One share of a device's memory at the moment the report looks at."""

    key: str  # a category, or: rounding, reusable, fragmented, outside, free
    title: str
    bytes: int
    note: str  # confidence of a category, else what the part is


def parts(profile: DeviceProfile) -> tuple[Part, ...]:
    """Where the bytes of the device are: categories by size, then what no tensor holds, then what is free.

    They sum to the capacity where it is known, the outside included, else to what PyTorch reserved.
    """
    found = [
        Part(category.value, category_title(category), held.bytes, held.confidence.value)
        for category, held in sorted(profile.categories.items(), key=lambda item: -item[1].bytes)
        if held.bytes
    ]
    rounding = rounding_bytes(profile)
    if rounding:
        found.append(Part("rounding", "block rounding", rounding, "in blocks, not in tensors"))
    if profile.cached is not None:
        reusable = profile.cached.bytes - profile.cached.fragmented_bytes
        found += [
            Part("reusable", "cached, reusable", reusable, "reserved, free"),
            Part("fragmented", "cached, fragmented", profile.cached.fragmented_bytes, "reserved, too small"),
        ]
    if profile.outside_bytes:
        found.append(Part("outside", "outside PyTorch", profile.outside_bytes, _holders(profile)))
    if profile.capacity_bytes is not None:
        free = profile.capacity_bytes - sum(part.bytes for part in found)
        found.append(Part("free", "free", free, ""))
    return tuple(part for part in found if part.bytes > 0)


def _holders(profile: DeviceProfile) -> str:
    """Who holds what is outside, as far as the recording tells: `2 others: python train.py 4242 3.00 GiB, ...`."""
    recording = profile.snapshot.recording
    told = recording.facts.get("holders") if recording else None
    others = [
        each
        for each in (told if isinstance(told, list | tuple) else ())
        if isinstance(each, Mapping) and each.get("device") == profile.device and not each.get("own")
    ]
    named = sorted(((int(each.get("bytes") or 0), each) for each in others), key=lambda pair: -pair[0])[:2]
    words = [f"{each.get('name') or 'process'} {each.get('pid')} {size(held)}" for held, each in named if held]
    return f"context; {', '.join(words)}" if words else "context, others"


def rounding_bytes(profile: DeviceProfile) -> int:
    """Bytes that blocks are larger than the tensors in them, at the moment of the report."""
    blocks = sum(block.block_bytes for block in profile.live) if profile.oom is None else profile.oom.allocated_bytes
    return max(0, blocks - profile.live_bytes)


def used_bytes(profile: DeviceProfile) -> int:
    """Everything that is not free at the moment of the report: the sum of the other parts."""
    return sum(part.bytes for part in parts(profile) if part.key != "free")


_NO_ESTIMATE = "No byte of this rests on an estimate."


def estimated_bytes(profile: DeviceProfile) -> int | None:
    """Live bytes at that moment whose size is an estimate of the recorder; None without a recording."""
    recording = profile.recording
    if recording is None:
        return None
    flags = recording.estimated
    return sum(block.requested_bytes for block in profile.live if 0 <= block.birth < len(flags) and flags[block.birth])


# Of what a job shows on the card, CUDA's own included; assumed, for what CUDA loads in the course of a job: on one and
# the same card that differs by driver and by whether kernels are loaded lazily.
LEAVE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRange:
    """What the estimates of a recording leave open about its peak, in bytes that count against the capacity."""

    low: int
    high: int
    brief: int  # for a moment, by a library that makes do with less, and is slower then; 0 = by none

    def leave(self, peak: int, outside: int) -> int:
        """Bytes to leave free on the card beside a peak, and beside what is held `outside` of PyTorch."""
        return max(0, self.high - peak, self.brief - peak) + round(LEAVE_SHARE * (peak + outside))


def peak_range(profile: DeviceProfile) -> PeakRange | None:
    """None without a recording, or where it does not say."""
    recording = profile.snapshot.recording
    said = recording.fidelity.get("peak_range") if recording else None
    mine = said.get(str(profile.device)) if isinstance(said, Mapping) else None
    if not isinstance(mine, Mapping):
        return None
    less, more, brief = (mine.get(key) for key in ("less_bytes", "more_bytes", "brief_bytes"))
    if not (isinstance(less, int) and isinstance(more, int) and isinstance(brief, int)):
        return None
    peak = peak_bytes(profile)
    return PeakRange(low=max(0, peak - less), high=peak + max(0, more), brief=max(0, brief))


def left_open(profile: DeviceProfile) -> list[str]:
    """What rests on estimates at that moment, and what that leaves open about the peak, in sentences."""
    estimated = estimated_bytes(profile)
    if estimated is None or not profile.live_bytes:
        return []
    share = 100 * estimated / profile.live_bytes
    told = [f"{share:.2g} % of this ({size(estimated)}) rests on estimates." if estimated else _NO_ESTIMATE]
    known = peak_range(profile)
    if known is None:
        return told
    peak, outside = peak_bytes(profile), profile.outside_bytes or 0
    if size(known.low) != size(known.high):
        ends = f"between {size(known.low)} and {size(known.high)}"
        told.append(f"With the estimates at their least and their most, the peak is {ends}.")
    if known.brief > known.high:
        told.append(
            f"Trials of cudnn.benchmark may take {size(known.brief)} for a moment; they make do with what is free, "
            "and may choose what is slower."
        )
    if max(known.high, known.brief) > peak:
        leave = size(known.leave(peak, outside))
        told.append(f"Leave {leave} beside it: for that, and {LEAVE_SHARE:.0%} for what CUDA loads as a job goes on.")
    return told


def peak_bytes(profile: DeviceProfile) -> int:
    """What counts against the capacity: the highest reserved bytes, else allocated, else requested."""
    peak = profile.peak
    known = (peak.reserved_bytes, peak.allocated_bytes, peak.requested_bytes)
    return next(each for each in known if each is not None)


def grouped(sites: Iterable[CallSite]) -> tuple[CallSite, ...]:
    """Call sites of the same line in like modules as one (`blocks.0.mlp` and `blocks.1.mlp` are `blocks.*.mlp`).

    A model of 80 layers would fill a table with one line of its code.
    """
    merged: dict[tuple[object, ...], CallSite] = {}
    for site in sites:
        module = like_module(site.module)
        key = (site.category, site.location, module)
        known = merged.get(key)
        if known is None:
            merged[key] = site
        else:
            total, count = known.bytes + site.bytes, known.count + site.count
            merged[key] = replace(known, bytes=total, count=count, module=module)
    return tuple(sorted(merged.values(), key=lambda site: -site.bytes))


def assumed(profile: MemoryProfile) -> tuple[str, ...]:
    """What the recorder had to assume or estimate, each once with how often: `Recording.fidelity` in sentences."""
    found: dict[str, None] = {}
    for device in profile.devices:
        fidelity = device.snapshot.recording.fidelity if device.snapshot.recording else {}
        for what, times in _entries(fidelity.get("assumptions")):
            found[f"{_local(what)}{_times(times)}"] = None
        for what, facts in _entries(fidelity.get("estimated")):
            found[f"estimated: {what}{_estimate(facts)}"] = None
    return tuple(found)


def _entries(section: object) -> list[tuple[str, object]]:
    return [(str(key), value) for key, value in section.items()] if isinstance(section, Mapping) else []


def _estimate(facts: object) -> str:
    if not isinstance(facts, Mapping):
        return ""
    times, largest = facts.get("times"), facts.get("largest_bytes")
    told = f", at most {size(largest)} each" if isinstance(largest, int) else ""
    return f"{_times(times)}{told}"


def _times(times: object) -> str:
    return f" ({times} times)" if isinstance(times, int) and times > 1 else ""


def _local(what: str) -> str:
    """Paths inside a sentence, shortened as everywhere else."""
    return " ".join(_short(word) for word in what.split(" "))


def _short(word: str) -> str:
    path, colon, line = word.partition(":")
    return short_path(path) + colon + line if path.startswith("/") else word
