"""Whatever the reader lets through, the diagnosis does not crash on."""

import random
from typing import Any

import pytest
from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.interface import Category
from oomdoc.diagnosers.profile import build
from oomdoc.errors import UnreadableInputError
from oomdoc.snapshots import reader

ODD = (None, True, -1, 0, 7, 1 << 63, 1 << 64, 1 << 200, 1.5, "", "x", [], {}, [[]], [7])


def recording(rng: random.Random) -> dict:
    frames = [
        {"name": "forward", "filename": "model.py", "line": 7},
        {"name": "<module>", "filename": "t.py", "line": 1},
    ]
    live = {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": frames}
    rest = {"address": 5120, "size": (2 << 20) - 1024, "requested_size": 3, "state": "inactive", "frames": []}
    segment = {
        "device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames, "blocks": [live, rest],
    }  # fmt: skip
    events = [("segment_alloc", 4096, 2 << 20), ("alloc", 4096, 1000)]
    for i in range(8):
        at = 5120 + 512 * rng.randrange(9)
        events += [("alloc", at, 400 + i), ("free_requested", at, 400 + i), ("free_completed", at, 400 + i)]
    trace = [
        {"action": a, "addr": at, "size": n, "stream": 0, "time_us": 10 + i, "pool_id": (0, 0), "frames": frames}
        for i, (a, at, n) in enumerate(events)
    ]
    trace.append({"action": "oom", "device_free": 9, "size": 1024, "stream": 0, "time_us": 99, "frames": frames})
    notes = [
        {"stage": s, "name": "Optimizer.step#SGD.step", "device": 0, "time_us": t}
        for s, t in (("START", 15), ("END", 20))
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "roundup_power2_divisions": {"1": 0}}
    return {
        "segments": [segment],
        "device_traces": [trace],
        "allocator_settings": settings,
        "external_annotations": notes,
    }


def spoil(raw: object, rng: random.Random) -> None:
    place = raw
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place)) if isinstance(place, list) else ()
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.85:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        else:
            place[key] = rng.choice(ODD)
        return


@pytest.mark.parametrize("seed", range(4))
def test_odd_values_do_not_crash_a_diagnosis(seed: int) -> None:
    rng = random.Random(seed)
    diagnosed = 0
    for _ in range(120):
        raw = recording(rng)
        for _ in range(rng.choice((1, 2, 5))):
            spoil(raw, rng)
        try:
            snapshot = reader.from_dict(raw)
        except UnreadableInputError:
            continue
        diagnose(build([snapshot]))
        diagnosed += 1
    assert diagnosed > 60


def test_what_never_trained_drops_no_gradient(kit: Any) -> None:
    """A recording of one event: something that is older than it goes."""
    job = kit.Job()
    addresses = [job.alloc(32 << 20, ()) for _ in range(4)]
    job.events.clear()
    job.free(addresses[0], ())
    (device,) = build([job.snapshot()]).devices
    assert device.categories.keys() == {Category.UNKNOWN}
