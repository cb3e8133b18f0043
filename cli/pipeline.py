"""From files to a report: the calls that every reporting command makes, in their order."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .inputs import load

if TYPE_CHECKING:
    from ..diagnosers.interface import DeviceProfile, Diagnosis, MemoryProfile


def profile_files(files: Sequence[Path], gpu: str | None = None, capacity: str | None = None) -> "MemoryProfile":
    """One profile for the job: a file per rank. `gpu` and `capacity` judge it against another card."""
    from ..diagnosers.profile import build

    profile = build(load(files))
    if gpu is None and capacity is None:
        return profile
    return replace(profile, devices=tuple(_on_card(device, gpu, capacity) for device in profile.devices))


def _on_card(device: "DeviceProfile", gpu: str | None, capacity: str | None) -> "DeviceProfile":
    from ..configs.loader import gpu as find
    from ..configs.loader import parse_size

    total, outside = device.capacity_bytes, device.outside_bytes
    if gpu is not None:
        card = find(gpu)
        total, outside = card.total_bytes, card.context_bytes
    if capacity is not None:
        total = parse_size(capacity)
    return replace(device, capacity_bytes=total, outside_bytes=outside)


def diagnose_files(files: Sequence[Path], gpu: str | None = None, capacity: str | None = None) -> "Diagnosis":
    from ..diagnosers.diagnose import diagnose

    return diagnose(profile_files(files, gpu, capacity))
