"""`oomdoc replay`: a recorded trace through the allocator again, as it was or under other settings."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..api.files import snapshot_files
from .format import Format
from .options import AllocConfOption, CapacityOption, FormatOption, GpuOption, OutputOption

if TYPE_CHECKING:
    from ..allocator.config import AllocatorConfig
    from ..allocator.replay import Replay
    from ..allocator.whatif import Advice, Failure, WhatIf
    from ..diagnosers.interface import DeviceProfile
    from ..reports.model import DeviceReplay

MOST_EVENTS = 300_000  # some seconds per setting beyond
MOST_ROWS = 5

EPILOG = """Examples:

[bold]oomdoc replay snapshot.pickle[/bold]  does the allocator model give every address of this recording?

[bold]oomdoc replay --alloc-conf expandable_segments:True snapshot.pickle[/bold]  would it have fitted then?

[bold]oomdoc replay --gpu rtx-4090 snapshot.pickle[/bold]  or on this card?
"""


def replay(
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT|RUNDIR", help="A recording with a trace.")],
    alloc_conf: AllocConfOption = None,
    capacity: CapacityOption = None,
    gpu: GpuOption = None,
    form: FormatOption = Format.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Run the recorded requests through the allocator again: would they have fitted?

    Without options it proves the model: how many addresses and segment events come out as recorded, and tries the
    settings worth trying. With --alloc-conf, --capacity or --gpu it answers what would have been. Exit status 1 when
    that would not have fitted.
    """
    from ..allocator.config import parse
    from ..api.pipeline import diagnose_files
    from ..reports.build import build
    from .output import emit

    asked = any(each is not None for each in (alloc_conf, capacity, gpu))
    config = None if alloc_conf is None else parse(alloc_conf)
    diagnosis = diagnose_files(snapshot_files([snapshot]), gpu, capacity)
    replays = tuple(_replayed(device, asked, config, alloc_conf) for device in diagnosis.profile.devices)
    emit(build(diagnosis, path=snapshot, replays=replays), form, output)
    if asked and any(each.fits is False for each in replays):
        raise typer.Exit(1)


def _replayed(
    device: "DeviceProfile", asked: bool, config: "AllocatorConfig | None", alloc_conf: str | None
) -> "DeviceReplay":
    from ..allocator.replay import replay as run
    from ..allocator.whatif import advise, recorded_capacity, what_if

    settings, trace = device.snapshot.settings, device.device_snapshot
    known = run(trace, settings, device.snapshot.stacks, device.capacity_bytes)
    room = recorded_capacity(trace, known)
    if device.capacity_bytes is not None:
        room = device.capacity_bytes - (device.outside_bytes or 0)
    if not asked:
        fits = False if device.oom else _fits(known.peak_reserved, device)
        table = advise(trace, settings, room, known) if len(trace.trace) <= MOST_EVENTS else None
        return _row(device, known, known.peak_reserved, fits, _advice(table))
    found = what_if(trace, settings, config, room, known)
    fits = None if room is None else found.fits
    return _row(device, known, found.peak_reserved, fits, _notes(found), alloc_conf)


def _advice(table: "Advice | None") -> tuple[str, ...]:
    """One line per setting that does better, best first."""
    from ..reports.text import size

    if table is None:
        return (f"Other settings are tried for recordings of up to {MOST_EVENTS:,} events; ask with --alloc-conf.",)
    if table.reason is not None:
        return (f"No settings were tried: {table.reason}.",)
    if not table.rows:
        return ("None of the settings worth trying would have done better.",)
    lines = []
    for row in table.rows[:MOST_ROWS]:
        verdict = "no limit known" if row.capacity is None else "fits" if row.fits else "does not fit"
        worst = "" if row.kept is None else f", {size(row.kept.peak_reserved)} with older blocks left where they were"
        peak = f"{size(row.peak_reserved)} reserved at peak{worst}"
        lines.append(f"{row.config.as_text()}: {verdict}; {peak}{_retries(row)}")
    base = table.baseline
    peak = f"{size(base.peak_reserved)} reserved at peak{_retries(base)}"
    lines.append(f"For comparison, the recording's own settings run in the same way: {peak}")
    return (*lines, *table.rows[0].assumptions)


def _retries(row: "WhatIf") -> str:
    """A retry gives everything cached back and waits for the device: it costs time, and shows how close it was."""
    if not row.retries:
        return ""
    return ", 1 retry" if row.retries == 1 else f", {row.retries} retries"


def _fits(peak_reserved: int, device: "DeviceProfile") -> bool | None:
    if device.capacity_bytes is None:
        return None
    return peak_reserved + (device.outside_bytes or 0) <= device.capacity_bytes


def _row(
    device: "DeviceProfile",
    known: "Replay",
    peak_reserved: int,
    fits: bool | None,
    notes: tuple[str, ...],
    alloc_conf: str | None = None,
) -> "DeviceReplay":
    from ..reports.model import DeviceReplay

    departure = known.departure
    return DeviceReplay(
        rank=device.rank,
        device=device.device,
        alloc_conf=alloc_conf,
        capacity_bytes=device.capacity_bytes,
        alloc_events=known.alloc_events,
        matched_addresses=known.matched_addresses,
        segment_events=known.segment_events,
        matched_segments=known.matched_segments,
        peak_reserved_bytes=peak_reserved,
        fits=fits,
        departure=f"The model departs at event {departure.event}: {departure.reason}." if departure else None,
        notes=notes,
    )


def _notes(found: "WhatIf") -> tuple[str, ...]:
    notes = [f"{found.retries} requests had to give back the whole cache first"] if found.retries else []
    if found.failure is not None:
        notes.append(_failure(found.failure))
    if found.kept is not None and found.kept.fits != found.fits:
        notes.append("With the blocks older than the trace left where they were it would go the other way.")
    return (*notes, *found.assumptions)


def _failure(failure: "Failure") -> str:
    from ..reports.text import size

    where = "already the blocks older than the trace" if failure.event < 0 else f"the request of event {failure.event}"
    return (
        f"First failure: {where}, {size(failure.requested)} with {size(failure.device_free)} free on the device, "
        f"{size(failure.allocated)} allocated and {size(failure.reserved)} reserved"
    )
