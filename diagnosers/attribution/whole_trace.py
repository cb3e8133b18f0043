"""The category of every allocation of a trace, for what is drawn over time; the live set has its own in the profile.

At the moment that the report looks at, the answer is the profile's own. Elsewhere it is recorded where it was
recorded, else what the same rules say of the block.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import DeviceRecording, Recording
from ...snapshots.timeline import Lifetimes, live_at
from ..interface import Category, Confidence, DeviceProfile
from .attribute import keeps_keys
from .facts import gather
from .infer import UNKNOWN, infer
from .signs import Sign

ORDER: tuple[Category, ...] = tuple(Category)
_CODE = {category: code for code, category in enumerate(ORDER)}


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Every allocation of one device, by row of `lives`; columns have shape (rows,)."""

    lives: Lifetimes
    category: NDArray[np.int8]  # index into ORDER
    exact: NDArray[np.bool_]  # recorded, not inferred
    module: NDArray[np.int32]  # index into `modules`; -1 = not known
    modules: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lives)


def history(profile: DeviceProfile) -> History:
    """All allocations of the device's trace and those older than it, each with its category and module."""
    facts = gather(profile.snapshot, profile.device_snapshot)
    lives = facts.lives
    category = np.full(len(lives), _CODE[Category.UNKNOWN], np.int8)
    exact = np.zeros(len(lives), np.bool_)
    module = np.full(len(lives), -1, np.int32)
    recording, recorded = profile.snapshot.recording, profile.recording
    if recording is not None and recorded is not None:
        _recorded(lives, recording, recorded, category, module)
        cached = np.flatnonzero((category == _CODE[Category.ACTIVATION]) & ((facts.signs & Sign.KV_CACHE) != 0))
        category[[row for row in cached.tolist() if keeps_keys(facts, row)]] = _CODE[Category.UNKNOWN]
        exact = category != _CODE[Category.UNKNOWN]
    missing = np.flatnonzero(~exact).tolist()
    verdicts = infer(facts, missing) if missing else {}
    for row, verdict in verdicts.items():
        if verdict is not UNKNOWN:
            category[row] = _CODE[verdict.category]
    _as_in_the_profile(profile, lives, category, exact)
    modules = recording.modules if recording is not None else ()
    return History(lives=lives, category=category, exact=exact, module=module, modules=modules)


def _recorded(
    lives: Lifetimes,
    recording: Recording,
    device: DeviceRecording,
    category: NDArray[np.int8],
    module: NDArray[np.int32],
) -> None:
    """Fills in what the recorder knew; a name that this version does not have stays unknown."""
    known = {each.value: _CODE[each] for each in ORDER}
    unknown = _CODE[Category.UNKNOWN]
    codes = np.array([*(known.get(name, unknown) for name in recording.categories), unknown], np.int8)
    born = np.flatnonzero((lives.birth >= 0) & (lives.birth < len(device.category)))
    category[born] = codes[device.category[lives.birth[born]]]
    module[born] = device.module[lives.birth[born]]
    for row in np.flatnonzero(lives.birth < 0).tolist():
        category[row] = codes[device.category_by_address.get(int(lives.address[row]), -1)]


def _as_in_the_profile(
    profile: DeviceProfile, lives: Lifetimes, category: NDArray[np.int8], exact: NDArray[np.bool_]
) -> None:
    event = profile.oom.event if profile.oom else profile.peak.event
    told = {(block.birth, block.address): block for block in profile.live}
    for row in live_at(lives, event).tolist():
        block = told.get((int(lives.birth[row]), int(lives.address[row])))
        if block is not None:
            category[row] = _CODE[block.category]
            exact[row] = block.confidence is Confidence.EXACT
