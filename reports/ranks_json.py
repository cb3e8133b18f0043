"""The `ranks` section of `oomdoc.report/1`: every rank in a row, and what they say together."""

from typing import Any

from ..diagnosers.ranks import Ranks, RankSummary


def section(ranks: Ranks) -> dict[str, Any]:
    return {
        "world_size": ranks.world_size,
        "missing": ranks.missing,
        "first_failure": None if ranks.first is None else ranks.first.rank,
        "failures": [{"rank": each.rank, "time": each.oom_time} for each in ranks.failures],
        "shared_cards": [{"card": card, "ranks": list(users)} for card, users in ranks.shared],
        "stages": [
            {
                "ranks": list(stage.ranks),
                "lowest_bytes": stage.lowest,
                "median_bytes": stage.median,
                "highest_bytes": stage.highest,
                "standing_out": list(stage.above),
            }
            for stage in ranks.stages
        ],
        "told": list(ranks.told),
        "rows": [_row(each) for each in ranks.summaries],
    }


def _row(summary: RankSummary) -> dict[str, Any]:
    return {
        "rank": summary.rank,
        "host": summary.host,
        "device": summary.device,
        "requested_bytes": summary.requested_bytes,
        "reserved_bytes": summary.reserved_bytes,
        "capacity_bytes": summary.capacity_bytes,
        "outside_bytes": summary.outside_bytes,
        "out_of_memory": summary.out_of_memory,
        "exit_status": summary.exit_status,
        "categories": dict(summary.categories),
    }
