"""What a key-value cache keeps of a forward: it outlives the forward without being saved for any backward."""

import numpy as np

from ..snapshots.model import Stacks
from .estimating import Case
from .passes import activation_rows
from .whatif_timeline import Mask

LIBRARY = "transformers/cache_utils.py"


def kept_by_a_cache(case: Case) -> Mask:
    """Rows that a cache's own code made, told by the innermost frame outside torch."""
    stacks = case.profile.snapshot.stacks
    own = np.array([_is_own(stacks, i) for i in range(len(stacks.stacks))] + [False], np.bool_)
    found: Mask = own[case.timeline.stack] & activation_rows(case.timeline)
    return found


def _is_own(stacks: Stacks, stack: int) -> bool:
    names = (frame.filename.replace("\\", "/") for frame in stacks.of(stack))
    return next((name for name in names if "/torch/" not in name), "").endswith(LIBRARY)
