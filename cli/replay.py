"""`oomdoc replay`: a recorded trace through the allocator model again."""

from typing import TYPE_CHECKING, Annotated

import typer

from .inputs import snapshot_files
from .options import Format, FormatOption, OutputOption

if TYPE_CHECKING:
    from ..diagnosers.interface import DeviceProfile
    from ..reports.model import DeviceReplay

EPILOG = """Examples:

[bold]oomdoc replay snapshot.pickle[/bold]  does the allocator model give every address of this recording?
"""


def replay(
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT|RUNDIR", help="A recording with a trace.")],
    form: FormatOption = Format.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Run the recorded requests through the allocator model again.

    Says how many addresses and segment events come out as PyTorch recorded them, and where the model first departs.
    """
    from ..reports.build import build
    from .output import emit
    from .pipeline import diagnose_files

    diagnosis = diagnose_files(snapshot_files([snapshot]))
    replays = tuple(_verify(device) for device in diagnosis.profile.devices)
    emit(build(diagnosis, path=snapshot, replays=replays), form, output)


def _verify(device: "DeviceProfile") -> "DeviceReplay":
    from ..allocator.replay import replay as run
    from ..reports.model import DeviceReplay

    found = run(device.device_snapshot, device.snapshot.settings, device.snapshot.stacks)
    outside = device.outside_bytes or 0
    fits = None if device.capacity_bytes is None else found.peak_reserved + outside <= device.capacity_bytes
    return DeviceReplay(
        rank=device.rank,
        device=device.device,
        alloc_conf=None,
        capacity_bytes=device.capacity_bytes,
        alloc_events=found.alloc_events,
        matched_addresses=found.matched_addresses,
        segment_events=found.segment_events,
        matched_segments=found.matched_segments,
        peak_reserved_bytes=found.peak_reserved,
        fits=fits if device.oom is None else False,
        departure=f"event {found.departure.event}: {found.departure.reason}" if found.departure else None,
    )
