"""Which variable keeps what a finding is about, where the recording knows it."""

from collections.abc import Mapping

from .interface import DeviceProfile
from .text import count, size

MOST = 2  # that a finding names


def graph_holders(profile: DeviceProfile) -> list[str]:
    """Who keeps autograd graphs, those that come near the largest one."""
    rows = [row for row in _rows(profile) if row[3]]
    largest = max((nodes for *_, nodes in rows), default=0)
    rows = sorted((row for row in rows if 2 * row[3] >= largest), key=lambda row: -row[3])
    return [f"kept by {name}, with a graph of {count(nodes, 'node')}" for name, _, _, nodes in rows[:MOST]]


def tensor_holders(profile: DeviceProfile, total: int) -> list[str]:
    """Who keeps tensors that come to at least half of these bytes; where nobody does, who keeps graphs of them."""
    rows = sorted((row for row in _rows(profile) if 2 * row[2] >= total), key=lambda row: -row[2])
    told = [f"{count(number, 'tensor')} of {size(held)} kept by {name}" for name, number, held, _ in rows[:MOST]]
    return told or graph_holders(profile)


def _rows(profile: DeviceProfile) -> list[tuple[str, int, int, int]]:
    """Holder, tensors, bytes and nodes of the largest graph."""
    recording = profile.snapshot.recording
    found = recording.facts.get("holders") if recording else None
    rows = []
    for each in found if isinstance(found, (list, tuple)) else ():
        if isinstance(each, Mapping) and isinstance(each.get("holder"), str):
            numbers = [each.get(key) for key in ("tensors", "bytes", "graph_nodes")]
            if all(isinstance(number, int) for number in numbers):
                rows.append((each["holder"], *numbers))
    return rows
