"""The live set of one device at one event, each block with its category: recorded where it was, else inferred."""

from dataclasses import dataclass

import numpy as np

from ...snapshots.model import DeviceRecording, DeviceSnapshot, Recording, Snapshot
from ...snapshots.timeline import live_at
from ..interface import Category, Confidence
from .facts import Facts, gather
from .infer import UNKNOWN, infer
from .rules import Verdict, kv_cache
from .signs import Sign

RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """One live row of `Facts`."""

    row: int
    category: Category
    confidence: Confidence
    share: float
    reason: str
    module: str | None


def attribute(snapshot: Snapshot, device: DeviceSnapshot, event: int, facts: Facts | None = None) -> list[Attributed]:
    """Every block that is live just after `event` (-1 = before the first event), in no particular order.

    Requested bytes of the result sum to the live bytes at that event, wherever the trace and the segments agree.
    """
    facts = facts or gather(snapshot, device)
    live = live_at(facts.lives, event).tolist()
    recording = snapshot.recording
    recorded = recording.devices.get(device.device) if recording else None
    exact: dict[int, tuple[Category, str | None]] = {}
    if recording is not None and recorded is not None:
        exact = {row: found for row in live if (found := _recorded(facts, row, recording, recorded)) is not None}
        born = (row for row, (category, _) in exact.items() if category is Category.ACTIVATION)
        cached = {row for row in born if keeps_keys(facts, row)}
        exact = {row: found for row, found in exact.items() if row not in cached}
    missing = [row for row in live if row not in exact]
    inferred = infer(facts, live) if missing else {}  # of all: what is known bears on what is not
    return [
        Attributed(
            row=row,
            category=exact[row][0],
            confidence=Confidence.EXACT,
            share=1.0,
            reason=RECORDED,
            module=exact[row][1],
        )
        if row in exact
        else _inferred(row, inferred.get(row, UNKNOWN))
        for row in live
    ]


def _recorded(
    facts: Facts, row: int, recording: Recording, device: DeviceRecording
) -> tuple[Category, str | None] | None:
    birth = int(facts.lives.birth[row])
    if birth < 0:
        index = device.category_by_address.get(int(facts.lives.address[row]), -1)
        module = None
    else:
        index = int(device.category[birth]) if birth < len(device.category) else -1
        at = int(device.module[birth]) if birth < len(device.module) else -1
        module = recording.modules[at] if 0 <= at < len(recording.modules) else None
    if not 0 <= index < len(recording.categories):
        return None
    try:
        category = Category(recording.categories[index])
    except ValueError:
        return None
    return (category, module) if category is not Category.UNKNOWN else None


def keeps_keys(facts: Facts, row: int) -> bool:
    """Recorded as an activation, since it was born in a forward: its frames say that a cache keeps it."""
    return bool(facts.signs[row] & Sign.KV_CACHE) and kv_cache(facts.of(row)) is not None


def _inferred(row: int, verdict: Verdict) -> Attributed:
    unknown = verdict.category is Category.UNKNOWN
    return Attributed(
        row=row,
        category=verdict.category,
        confidence=Confidence.UNKNOWN if unknown else Confidence.INFERRED,
        share=verdict.share,
        reason=verdict.reason,
        module=None,
    )


def live_bytes(facts: Facts, found: list[Attributed]) -> int:
    """Requested bytes of the attributed rows."""
    return int(facts.requested[np.array([each.row for each in found], np.int64)].sum()) if found else 0
