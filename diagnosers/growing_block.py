"""A tensor that one line makes anew in every step, larger each time: `all = torch.cat([all, out])`."""

from dataclasses import dataclass

import numpy as np

from ..snapshots.timeline import lifetimes, live_at
from .interface import DeviceProfile, LiveBlock
from .survivors import complete_steps

# Random sizes rise six times in a row by chance once in 720.
MIN_STEPS = 6
# And the tensor must have grown to this many times its size: lengths of batches vary less over a few steps.
MIN_GROWTH = 2.0
# The last growth may differ from the median growth by this factor: batches differ, a doubling cache does not qualify.
EVEN_GROWTH = 3.0


@dataclass(frozen=True, slots=True)
class GrowingBlock:
    index: int  # into DeviceProfile.live
    bytes: tuple[int, ...]  # at the end of each complete step after the first


def growing_block(profile: DeviceProfile, live: dict[int, LiveBlock]) -> GrowingBlock | None:
    """The largest such block that is alive at the moment looked at; None where there is none."""
    complete = complete_steps(profile)
    if complete < MIN_STEPS:
        return None
    lives = lifetimes(profile.device_snapshot)
    at_ends = [live_at(lives, step.event) for step in profile.steps[1:complete]]
    best: GrowingBlock | None = None
    for index, block in live.items():
        if (
            block.birth < 0
            or block.stack < 0
            or (best and block.requested_bytes <= profile.live[best.index].requested_bytes)
        ):
            continue
        series = []
        for rows in at_ends:
            mine = rows[lives.alloc_stack[rows] == block.stack]
            if len(mine) != 1:
                break
            series.append(int(lives.requested[mine[0]]))
        else:
            growths = np.diff(series)
            doubled = series[-1] >= MIN_GROWTH * series[0]
            if doubled and (growths > 0).all() and growths.max() <= EVEN_GROWTH * np.median(growths):
                best = GrowingBlock(index, tuple(series))
    return best
