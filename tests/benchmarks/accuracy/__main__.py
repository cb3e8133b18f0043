"""`python tests/benchmarks/accuracy [--write] [recordings] [timm] [published] [predictions] [applied]`: near?

Prints a summary of each section as JSON; with --write its tables go into docs/accuracy.md.
"""

import argparse
import json
from typing import Any

import applied_table
import page
import predictions_table
import published_table
import recordings_table
import timm_table

SECTIONS: dict[str, Any] = {
    "recordings": recordings_table,
    "timm": timm_table,
    "published": published_table,
    "predictions": predictions_table,
    "applied": applied_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=list(SECTIONS))
    parser.add_argument("--write", action="store_true", help="into docs/accuracy.md")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th run of timm's table only")
    parser.add_argument("--fresh", action="store_true", help="record the predictions' jobs anew")
    parser.add_argument("--rows", type=int, nargs="+", default=[], help="these rows of the published table only")
    given = parser.parse_args()
    options: dict[str, dict[str, Any]] = {
        "published": {"only": given.rows},
        "timm": {"every": given.every},
        "predictions": {"fresh": given.fresh},
    }
    for name in given.sections:
        section = SECTIONS[name]
        found = section.rows(**options.get(name, {}))
        if given.write:
            page.put(name, section.section(found))
        print(json.dumps({name: section.summary(found)}))  # noqa: T201


if __name__ == "__main__":
    main()
