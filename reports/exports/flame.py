"""Live bytes by call stack at the moment of the report: speedscope's file format, and collapsed stacks.

Formats: https://www.speedscope.app/file-format-schema.json; "folded" lines as Brendan Gregg's flamegraph.pl reads.
"""

import json
from collections.abc import Iterator

from ...diagnosers.interface import DeviceProfile, LiveBlock
from ...snapshots.model import Frame
from ..headline import memory_heading
from ..model import Report
from ..text import CATEGORY_TITLES, CONTROLS, device_title
from .needs import devices_of

SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(report: Report) -> str:
    """A profile for each device; a stack ends in the category of its blocks, and weighs their bytes."""
    frames: dict[tuple[str, str, int], int] = {}
    profiles = []
    for device in devices_of(report, "speedscope"):
        samples, weights = [], []
        for stack, category, bytes_ in _stacks(device):
            path = [(frame.name or "?", frame.filename, frame.line) for frame in stack]
            path.append((f"[{CATEGORY_TITLES[category]}]", "", 0))
            samples.append([frames.setdefault(each, len(frames)) for each in path])
            weights.append(bytes_)
        profiles.append(
            {
                "type": "sampled", "name": memory_heading(report, device), "unit": "bytes", "startValue": 0,
                "endValue": sum(weights), "samples": samples, "weights": weights,
            }
        )  # fmt: skip
    content = {
        "$schema": SPEEDSCOPE_SCHEMA,
        "exporter": "oomdoc",
        "name": report.source.path,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(*each) for each in frames]},
        "profiles": profiles,
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


def _frame(name: str, file: str, line: int) -> dict[str, object]:
    found: dict[str, object] = {"name": name}
    if file:
        found["file"] = file
    if line > 0:
        found["line"] = line
    return found


def collapsed(report: Report) -> str:
    """`frame;frame;[activations] bytes`, outermost first; several devices each under a frame of their own."""
    devices = devices_of(report, "collapsed")
    lines = []
    for device in devices:
        title = device_title(device, report.source.world_size, len(devices))
        for stack, category, bytes_ in _stacks(device):
            path = [title] if title else []
            path += [_folded(frame) for frame in stack]
            lines.append(f"{';'.join([*path, f'[{CATEGORY_TITLES[category]}]'])} {bytes_}")
    return "\n".join([*sorted(lines), ""])


def _folded(frame: Frame) -> str:
    where = f" ({frame.filename}:{frame.line})" if frame.line else f" ({frame.filename})" if frame.filename else ""
    return " ".join(f"{frame.name or '?'}{where}".translate(CONTROLS).replace(";", ":").split()) or "?"


def _stacks(device: DeviceProfile) -> Iterator[tuple[tuple[Frame, ...], str, int]]:
    """(frames outermost first, category, bytes) of the live blocks that share both."""
    sums: dict[tuple[int, str], int] = {}
    block: LiveBlock
    for block in device.live:
        key = (block.stack, block.category.value)
        sums[key] = sums.get(key, 0) + block.requested_bytes
    none = (Frame("", 0, "no stack recorded"),)
    for (stack, category), bytes_ in sorted(sums.items(), key=lambda item: -item[1]):
        yield device.snapshot.stacks.of(stack)[::-1] or none, category, bytes_
