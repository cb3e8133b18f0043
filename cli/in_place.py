"""What a rank that another launcher started says at its end: one line, for there may be thousands."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..recorders.launch import RunResult
    from ..recorders.placement import Placement


def tell_of_rank(placed: "Placement", directory: Path, result: "RunResult") -> None:
    from .output import note, say

    who = f"rank {placed.rank} of {placed.world_size}"
    for sentence in (*filter(None, [result.failure]), *result.ended):
        say(f"{who}: {sentence}")
    if result.out_of_memory:
        say(f"{who} ran out of GPU memory; once all ranks have ended: oomdoc analyze {directory}")
    elif placed.rank == 0:
        note(f"recorded; once all ranks have ended: oomdoc analyze {directory}")
