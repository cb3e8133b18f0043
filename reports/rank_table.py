"""The ranks that a reader wants to see of many: who failed, and the fullest and the emptiest of each stage."""

from typing import Literal

from ..diagnosers.ranks import Ranks, RankSummary
from .text import maybe_size, moment, size

MOST_ROWS = 10
Justify = Literal["left", "right"]
HEADS: tuple[tuple[str, Justify], ...] = (
    ("rank", "right"),
    ("host", "left"),
    ("reserved", "right"),
    ("of", "right"),
    ("largest part", "left"),
    ("ended", "left"),
)


def chosen(ranks: Ranks) -> tuple[RankSummary, ...]:
    of_rank = {each.rank: each for each in ranks.summaries}
    wanted = [each.rank for each in ranks.failures[: MOST_ROWS // 2]]
    for stage in ranks.stages:
        wanted += [stage.highest_rank, stage.lowest_rank]
    return tuple(of_rank[rank] for rank in list(dict.fromkeys(wanted))[:MOST_ROWS])


def rows(ranks: Ranks) -> list[tuple[str, ...]]:
    return [row(each) for each in chosen(ranks)]


def row(summary: RankSummary) -> tuple[str, ...]:
    largest = max(summary.categories.items(), key=lambda each: each[1], default=None)
    when = moment(summary.step, summary.phase)
    ended = f"out of memory{f', {when}' if when else ''}" if summary.out_of_memory else summary.ended or ""
    return (
        str(summary.rank),
        summary.host,
        size(summary.held_bytes),
        maybe_size(summary.capacity_bytes, "?"),
        "" if largest is None else f"{largest[0].replace('_', ' ')} {size(largest[1])}",
        ended,
    )
