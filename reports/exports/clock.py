"""The time axis of a trace: as recorded, else one microsecond for each event."""

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Trace


def microseconds(trace: Trace) -> tuple[NDArray[np.int64], bool]:
    """Time of each event since the first, shape (events + 1,) with the dump at the end; whether it was recorded.

    The clock counts as recorded where it is known for every event, never runs back and moves at all.
    """
    times = trace.time_us
    if len(times) > 1 and int(times.min()) >= 0 and bool((np.diff(times) >= 0).all()) and times[-1] > times[0]:
        since = times - times[0]
        return np.append(since, since[-1] + 1), True
    return np.arange(len(trace) + 1, dtype=np.int64), False
