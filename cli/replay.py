"""`oomdoc replay`: a recorded trace through the allocator again, as it was or under other settings."""

from typing import TYPE_CHECKING, Annotated

import typer

from .inputs import snapshot_files
from .options import AllocConfOption, CapacityOption, Format, FormatOption, GpuOption, OutputOption

if TYPE_CHECKING:
    from ..allocator.config import AllocatorConfig
    from ..allocator.replay import Replay
    from ..allocator.whatif import Failure, WhatIf
    from ..diagnosers.interface import DeviceProfile
    from ..reports.model import DeviceReplay

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

    Without options it proves the model: how many addresses and segment events come out as recorded. With --alloc-conf,
    --capacity or --gpu it answers what would have been. Exit status 1 when that would not have fitted.
    """
    from ..allocator.config import parse
    from ..reports.build import build
    from .output import emit
    from .pipeline import diagnose_files

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
    from ..allocator.whatif import what_if

    settings = device.snapshot.settings
    known = run(device.device_snapshot, settings, device.snapshot.stacks)
    if not asked:
        fits = False if device.oom else _fits(known.peak_reserved, device)
        return _row(device, known, known.peak_reserved, fits, ())
    room = None if device.capacity_bytes is None else device.capacity_bytes - (device.outside_bytes or 0)
    found = what_if(device.device_snapshot, settings, config, room, known)
    fits = None if room is None else found.fits
    return _row(device, known, found.peak_reserved, fits, _notes(found), alloc_conf)


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
