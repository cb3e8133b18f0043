"""What the stages of ZeRO share: which rows a rank keeps a part of."""

from ..diagnosers.interface import Category
from .batch_scaling import with_batch
from .estimating import Case
from .fsdp import share_of_batch
from .whatif_timeline import OPTIMIZER, Timeline


def with_parts(case: Case, *categories: Category) -> Timeline:
    """Of rows of these categories, and of the step's temporaries, one part per rank; the batch shared by all."""
    timeline = case.timeline
    rows = timeline.is_category(*categories)
    rows |= timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    return with_batch(timeline, share_of_batch(case), case.job.gpu).resized(rows, 1 / case.job.world_size)


def held(timeline: Timeline, *categories: Category) -> int:
    """Bytes of these categories at their highest."""
    return timeline.take(timeline.is_category(*categories).nonzero()[0]).peak().bytes
