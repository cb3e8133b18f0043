"""Puts diagnosis, plan and gate into the record that the renderers take."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..diagnosers.explanation import explain
from ..diagnosers.interface import DeviceProfile, Diagnosis, Location, MemoryProfile
from ..diagnosers.source import source_lines
from ..gates.interface import Gate
from ..remedies.interface import Plan
from .figures import peak_bytes, used_bytes
from .model import DeviceReplay, Excerpt, Report, Source, Verdict
from .text import category_title, moment, percent, size

if TYPE_CHECKING:
    from ..diagnosers.ranks import Ranks, RankSummary

_LINES_AROUND = 1


def build(
    diagnosis: Diagnosis,
    *,
    path: str,
    plan: Plan | None = None,
    gate: Gate | None = None,
    replays: tuple[DeviceReplay, ...] = (),
    next_commands: tuple[str, ...] = (),
    ranks: "Ranks | None" = None,
) -> Report:
    """The report of one job. Reads the lines of the user's files that findings point at, where they can be read."""
    return Report(
        source=source_of(diagnosis.profile, path, ranks),
        verdict=verdict_of(diagnosis, ranks),
        ranks=ranks,
        diagnosis=diagnosis,
        plan=plan,
        gate=gate,
        replays=replays,
        next_commands=next_commands,
        explanation=explain(diagnosis),
        excerpts=excerpts(location for finding in diagnosis.findings for location in finding.locations),
    )


def source_of(profile: MemoryProfile, path: str, merged: "Ranks | None" = None) -> Source:
    recording = profile.recording
    seen = {device.rank for device in profile.devices} | {each.rank for each in (merged.summaries if merged else ())}
    ranks = tuple(sorted(seen))
    return Source(
        path=path,
        kind=recording.kind if recording else "cuda",
        torch=recording.versions.get("torch") if recording else None,
        gpu=recording.gpu if recording else None,
        world_size=recording.world_size if recording else max(1, len(ranks)),
        ranks=ranks,
    )


def verdict_of(diagnosis: Diagnosis, ranks: "Ranks | None" = None) -> Verdict:
    """The device that failed (of several the first), else the one with the highest peak, and one sentence about it."""
    devices = diagnosis.profile.devices
    first = ranks.first if ranks is not None else None
    if first is not None:
        return _verdict_of_rank(first, devices, ranks.told[0] if ranks is not None else "")
    if not devices:
        return Verdict(out_of_memory=False, rank=None, device=None, summary="The snapshot holds no device.")
    failed = [device for device in devices if device.oom is not None]
    worst = max(failed or devices, key=peak_bytes)
    return Verdict(
        out_of_memory=bool(failed),
        rank=worst.rank,
        device=worst.device,
        summary=_failure(worst) if failed else " ".join(filter(None, (_peak(worst), _caught(devices)))),
        ended=None if failed else next(filter(None, map(_ended, devices)), None),
    )


def _verdict_of_rank(first: "RankSummary", devices: Sequence[DeviceProfile], told: str) -> Verdict:
    """Of many ranks. What its snapshot says, where that was kept; else what its summary does."""
    device = next((each for each in devices if each.rank == first.rank and each.oom is not None), None)
    if device is not None:
        said = _failure(device)
    else:
        asked = "" if first.oom_asked_bytes is None else f"{size(first.oom_asked_bytes)} was asked for; "
        said = f"{asked}{size(first.requested_bytes)} of tensors was the peak."
    summary = f"{told[:1].upper()}{told[1:]}. {said}"
    return Verdict(out_of_memory=True, rank=first.rank, device=first.device, summary=summary)


def _caught(devices: Sequence[DeviceProfile]) -> str:
    """What a retry made of it: the peak of the whole run holds the attempts that failed as well."""
    caught = [device.caught for device in devices if device.caught is not None]
    if not caught:
        return ""
    count = sum(each.count for each in caught)
    after = size(max(each.peak_after_bytes for each in caught))
    errors = "One out-of-memory error was" if count == 1 else f"{count} out-of-memory errors were"
    return f"{errors} caught on the way; the script went on and its peak afterwards was {after} of tensors."


def _failure(device: DeviceProfile) -> str:
    oom = device.oom
    assert oom is not None
    when = moment(oom.step, oom.phase)
    free = "" if oom.device_free_bytes is None else f" with {size(oom.device_free_bytes)} free on the device"
    whole = f" of {size(device.capacity_bytes)}" if device.capacity_bytes else ""
    cached = oom.reserved_bytes - oom.allocated_bytes
    return (
        f"Out of memory{f' in {when}' if when else ''}: {size(oom.requested_bytes)} was asked for{free}; "
        f"{size(oom.allocated_bytes)}{whole} was allocated and {size(cached)} cached. {_largest(device)}"
    )


def _peak(device: DeviceProfile) -> str:
    peak = device.peak
    when = moment(peak.step, peak.phase)
    held = f"the peak is {size(peak.requested_bytes)} of tensors{f' in {when}' if when else ''}"
    if peak.reserved_bytes is None:
        return f"No failure was recorded: {held}. {_largest(device)}"
    if device.capacity_bytes is None:
        return f"No failure was recorded: {held}, {size(peak.reserved_bytes)} reserved. {_largest(device)}"
    highest = peak.reserved_bytes + (device.outside_bytes or 0)
    used = used_bytes(device) if device.cached is not None else highest
    later = "" if size(highest) == size(used) else f", and {size(highest)} at the highest of the whole run"
    return (
        f"{_fits(device, highest)}{_how_long(device)}: {held}; with cache and context {size(used)} of "
        f"{size(device.capacity_bytes)} ({percent(used, device.capacity_bytes)}){later}. {_largest(device)}"
    )


def _fits(device: DeviceProfile, used: int) -> str:
    """What can be said of a job without an out-of-memory on this card, of which it would use so many bytes."""
    if device.capacity_bytes is not None and used > device.capacity_bytes:
        return "It does not fit on this card as it ran"
    ended = _ended(device)
    return f"The script ended early ({ended}); until then it fits" if ended else "It fits"


def _ended(device: DeviceProfile) -> str | None:
    """The error that cut the script short and its exit status, as far as the recording tells."""
    facts = device.snapshot.recording.facts if device.snapshot.recording else {}
    ended, status = facts.get("ended"), facts.get("exit_status")
    if not isinstance(ended, str):
        return None
    return f"{ended}, status {status}" if isinstance(status, int) else ended


def _how_long(device: DeviceProfile) -> str:
    """A run is known for the steps that were recorded, and no further."""
    recording = device.snapshot.recording
    counted = recording.facts.get("steps") if recording else None
    steps = counted if isinstance(counted, int) else max((each.step for each in device.steps), default=0)
    return f" for the {steps} steps recorded" if steps > 1 else " for the one step recorded" if steps else ""


def _largest(device: DeviceProfile) -> str:
    known = [(held.bytes, category) for category, held in device.categories.items() if held.bytes]
    if not known:
        return ""
    count, category = max(known, key=lambda pair: pair[0])
    return f"The largest part is {category_title(category)}: {size(count)} ({percent(count, device.live_bytes)})."


def excerpts(locations: Iterable[Location]) -> dict[Location, Excerpt]:
    """The lines around each location whose file can be read here and is long enough to hold it."""
    found: dict[Location, Excerpt] = {}
    for location in dict.fromkeys(locations):
        lines = source_lines(location.file)
        if lines is None or not 0 < location.line <= len(lines):
            continue
        first = max(1, location.line - _LINES_AROUND)
        last = min(len(lines), location.line + _LINES_AROUND)
        found[location] = Excerpt(first, tuple(line.rstrip() for line in lines[first - 1 : last]))
    return found
