"""The snapshot again, as PyTorch's viewer opens it (docs.pytorch.org/memory_viz), with what oomdoc knows of each block.

The viewer colours an allocation by the key `category` of its event (torch/utils/viz/MemoryViz.js). A block that is in
no event carries it as its innermost frame, which the viewer shows when the block is pointed at.
"""

import pickle
from typing import Any

from ...diagnosers.attribution.whole_trace import ORDER, history
from ...diagnosers.interface import DeviceProfile
from ...errors import OomdocError
from ...snapshots.unpickler import collector_paused
from ...snapshots.writer import PROTOCOL, to_dict
from ..model import Report
from ..text import CATEGORY_TITLES
from .needs import devices_of

FILE = "oomdoc"  # the "file" of the frame that names a category; no Python file, so no tool takes it for a line
UNKNOWN = CATEGORY_TITLES["unknown"]


def render(report: Report) -> bytes:
    """A pickle of plain values. Raises OomdocError for several files: a snapshot is of one process."""
    devices = devices_of(report, "snapshot")
    if len({id(device.snapshot) for device in devices}) > 1:
        raise OomdocError("--format snapshot writes one file for one: give a single snapshot or rank")
    with collector_paused():
        raw = to_dict(devices[0].snapshot)
        for profile in devices:
            _categories(raw, profile)
        return pickle.dumps(raw, protocol=PROTOCOL)


def _categories(raw: dict[str, Any], profile: DeviceProfile) -> None:
    past = history(profile)
    lives = past.lives
    events = raw["device_traces"][profile.device]
    titles = [CATEGORY_TITLES[category.value] for category in ORDER]
    frames = {title: {"name": title, "filename": FILE, "line": 0} for title in titles}
    blocks = {
        block["address"]: block
        for segment in raw["segments"]
        if segment["device"] == profile.device
        for block in segment["blocks"]
    }
    consistent = len(events) == len(profile.device_snapshot.trace)  # else the profile left a broken trace out
    for row, code in enumerate(past.category.tolist()):
        title, birth, death = titles[code], int(lives.birth[row]), int(lives.death[row])
        if consistent and birth >= 0:
            events[birth]["category"] = title
        elif consistent and death < len(events):
            events[death]["category"] = title  # older than the trace: the viewer knows it by its free
        if lives.block[row] >= 0 and (block := blocks.get(int(lives.address[row]))) is not None:
            block["frames"] = [frames[title], *block["frames"]]
    _name_the_unknown(events)


def _name_the_unknown(events: list[dict[str, Any]]) -> None:
    """The viewer fails on a trace with categories of which none is "unknown": it misspells the list it would add to."""
    if not events or any(event.get("category") == UNKNOWN for event in events):
        return
    spare = next((event for event in events if event["action"].startswith("segment") or event["action"] == "oom"), None)
    if spare is None:
        spare = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": []}
        events.append(spare)
    spare["category"] = UNKNOWN
