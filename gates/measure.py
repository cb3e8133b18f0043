"""From a profile to what a gate compares: the highest peak, and the lines that hold it."""

from collections.abc import Sequence
from dataclasses import replace

from ..diagnosers.interface import Category, DeviceProfile, MemoryProfile
from ..diagnosers.matching import Site, sites
from ..diagnosers.source import code_at, stable_path
from ..errors import OomdocError
from .interface import Line, Measured, Metric

SMALLEST_SHARE = 0.001  # of the live bytes: lines below it are summed by category
LONGEST_CODE = 120  # characters; enough to recognise a line

Key = tuple[Category, str | None, str | None, str | int | None, str | None]


def worst(profile: MemoryProfile, metric: Metric) -> DeviceProfile:
    """The device with the largest peak, over all ranks: every one of them has to fit.

    Raises OomdocError where the recording does not carry that peak.
    """
    peaks = {
        Metric.ALLOCATED: lambda device: device.peak.allocated_bytes,
        Metric.RESERVED: lambda device: device.peak.reserved_bytes,
        Metric.REQUESTED: lambda device: device.peak.requested_bytes,
    }
    found = [(peaks[metric](device), device) for device in profile.devices]
    if not found:
        raise OomdocError("nothing was recorded on a GPU, so there is no peak to judge")
    known = [(peak, device) for peak, device in found if peak is not None]
    if len(known) < len(found):
        raise OomdocError(f"the recording does not tell its peak of {metric.value} bytes; try --metric requested")
    return max(known, key=lambda each: each[0])[1]


def measure(device: DeviceProfile, world_size: int) -> Measured:
    recording = device.snapshot.recording
    peak = device.peak
    return Measured(
        gpu=recording.gpu if recording else None,
        torch=recording.versions.get("torch") if recording else None,
        world_size=world_size,
        rank=device.rank,
        device=device.device,
        requested_bytes=peak.requested_bytes,
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        categories={category: held.bytes for category, held in device.categories.items() if held.bytes},
        lines=large_enough(lines_of(sites(device)), device.live_bytes),
    )


def lines_of(found: Sequence[Site]) -> tuple[Line, ...]:
    """One line per text, function, category and kind of module, in the order of the code."""
    rows: dict[Key, Line] = {}
    for site in found:  # by file and line
        where = site.location
        code = code_at(where.file, where.line) if where else None
        line = Line(
            category=site.category,
            file=stable_path(where.file) if where else None,
            function=where.function if where else None,
            code=code[:LONGEST_CODE] if code else None,
            module=site.kind[1],
            bytes=site.bytes,
            blocks=site.count,
            line=where.line if where else None,
        )
        key = key_of(line)
        known = rows.get(key)
        rows[key] = line if known is None else _together(known, line)
    return tuple(rows.values())


def key_of(line: Line) -> Key:
    """What makes two lines of two recordings the same."""
    return line.category, line.file, line.function, line.code or line.line, line.module


def _together(one: Line, other: Line) -> Line:
    larger = max(one, other, key=lambda each: each.bytes)
    return replace(larger, bytes=one.bytes + other.bytes, blocks=one.blocks + other.blocks)


def large_enough(lines: Sequence[Line], whole: int) -> tuple[Line, ...]:
    return tuple(line for line in lines if line.bytes >= SMALLEST_SHARE * whole)
