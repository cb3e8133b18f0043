"""From files to a report: the calls that every reporting command makes, in their order."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .files import load, ranks_of

if TYPE_CHECKING:
    from ..diagnosers.interface import DeviceProfile, Diagnosis, MemoryProfile
    from ..remedies.interface import Job
    from ..snapshots.model import Snapshot


def profile_files(files: Sequence[Path], gpu: str | None = None, capacity: str | None = None) -> "MemoryProfile":
    """One profile for the job: a file per rank. `gpu` and `capacity` judge it against another card."""
    return profile_snapshots(load(files), ranks_of(files), gpu, capacity)


def profile_snapshots(
    snapshots: "Sequence[Snapshot]", ranks: Sequence[int] | None, gpu: str | None = None, capacity: str | None = None
) -> "MemoryProfile":
    """The same of snapshots that are read; their own recordings tell the ranks, else `ranks`, else the order."""
    from ..diagnosers.profile import build

    profile = build(snapshots, ranks)
    if gpu is None and capacity is None:
        return profile
    return replace(profile, devices=tuple(_on_card(device, gpu, capacity) for device in profile.devices))


def _on_card(device: "DeviceProfile", gpu: str | None, capacity: str | None) -> "DeviceProfile":
    from ..configs.loader import gpu as find
    from ..configs.loader import parse_capacity

    total, outside = device.capacity_bytes, device.outside_bytes
    if gpu is not None:
        card = find(gpu)
        total, outside = card.total_bytes, card.context_bytes
    if capacity is not None:
        total = parse_capacity(capacity)
    return replace(device, capacity_bytes=total, outside_bytes=outside)


def diagnose_files(files: Sequence[Path], gpu: str | None = None, capacity: str | None = None) -> "Diagnosis":
    from ..diagnosers.diagnose import diagnose

    return diagnose(profile_files(files, gpu, capacity))


def job_of(profile: "MemoryProfile", gpu: str | None = None, nnodes: int = 1) -> "Job":
    """The job as the planner takes it: its card, what the allocator can get there, and how many ranks there are."""
    from ..configs.loader import gpus
    from ..remedies.interface import Job
    from ..remedies.job_facts import read

    recording = profile.recording
    named = gpu or (recording.gpu if recording else None)
    ranks = len({device.rank for device in profile.devices})
    return Job(
        gpu=named if named in gpus() else None,
        capacity_bytes=smallest_room(profile),
        world_size=recording.world_size if recording else max(1, ranks),
        nnodes=nnodes,
        batch_size=read(recording).loader_batch_size,
    )


def smallest_room(profile: "MemoryProfile") -> int | None:
    """Of all devices, the fewest bytes that an allocator can get; None where one of them is not known."""
    rooms = [
        None if device.capacity_bytes is None else device.capacity_bytes - (device.outside_bytes or 0)
        for device in profile.devices
    ]
    known = [room for room in rooms if room is not None]
    return min(known) if known and len(known) == len(rooms) else None
