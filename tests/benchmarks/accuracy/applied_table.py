"""Remedies that are made in the script by hand: the estimate from the run without, against the run with the change.

The scripts are train_by_hand.py and train_zoo.py of tests/remedies/scripts, the changes applied_by_hand.py beside them.
"""

import sys
from collections.abc import Sequence

from page import MIB, ROOT, made, table

sys.path.insert(0, str(ROOT / "tests" / "remedies"))
from applied_by_hand import CHANGES, Applied, applied
from recordings import Recordings


def rows() -> list[Applied]:
    record = Recordings(ROOT / "build" / "recordings")
    return [applied(record, change) for change in CHANGES]


def section(found: Sequence[Applied]) -> str:
    head = ("change", "ranks", "before MiB", "with it MiB", "estimate", "in the band")
    lines = [
        (
            each.change.name,
            each.change.ranks,
            f"{each.before / MIB:.1f}",
            f"{each.seen / MIB:.1f}",
            each.reason if each.error is None else f"{each.error:+.1%}",
            "yes" if each.in_band else "no",
        )
        for each in found
    ]
    return f"{made()}\n\n{table(head, lines)}"


def summary(found: Sequence[Applied]) -> dict[str, object]:
    errors = {each.change.name: None if each.error is None else round(each.error, 4) for each in found}
    return {"errors": errors, "outside the band": [each.change.name for each in found if not each.in_band]}
