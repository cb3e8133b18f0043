"""A table of which a step reads a few rows (an embedding of users, items, words), found among the parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .attribution.facts import gather
from .attribution.signs import Sign
from .interface import Category, DeviceProfile


@dataclass(frozen=True, slots=True)
class Table:
    bytes: int
    rows: int
    columns: int


def largest_matrix(profile: DeviceProfile) -> Table | None:
    """The largest parameter of the job, where its shape was recorded and is that of a matrix."""
    facts = profile.snapshot.recording.facts.get("parameters") if profile.snapshot.recording else None
    shape = facts.get("largest_shape") if isinstance(facts, Mapping) else None
    if not isinstance(shape, (list, tuple)) or len(shape) != 2 or not all(isinstance(each, int) for each in shape):
        return None
    assert isinstance(facts, Mapping)
    return Table(int(facts.get("largest_bytes") or 0), shape[0], shape[1])


def lookup_table(profile: DeviceProfile, rows_per_column: float) -> Table | None:
    """The largest parameter, if it is a table that is only looked up: no linear layer makes a value for each row."""
    table = largest_matrix(profile)
    if table is None or not table.bytes or table.rows < rows_per_column * table.columns:
        return None
    same = [b for b in profile.live if b.category is Category.PARAMETER and b.requested_bytes == table.bytes]
    facts = gather(profile.snapshot, profile.device_snapshot)
    looked_up = bool((facts.signs & Sign.LOOKUP).any())
    made = facts.requested[(facts.signs & Sign.PROJECTION) != 0]
    scored = np.any((made > 0) & (made % (2 * table.rows) == 0))
    return table if len(same) == 1 and looked_up and not scored else None
