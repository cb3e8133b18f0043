"""`oomdoc doctor`: what this machine has, and what oomdoc can do here."""

from typing import TYPE_CHECKING

import typer

from .. import __version__
from .output import put

if TYPE_CHECKING:
    from .health import Check

EPILOG = """Examples:

[bold]oomdoc doctor[/bold]  before the first run, and in a bug report
"""

_MARKS = {True: "ok  ", False: "BAD ", None: "    "}


def doctor() -> None:
    """Tell what this machine has (GPUs, who holds their memory, torch, host memory, settings) and what works here.

    Exit status 1 when one of the checks is marked BAD.
    """
    from .health import all_checks

    checks = all_checks()
    put(draw(checks))
    if any(check.good is False for check in checks):
        raise typer.Exit(1)


def draw(checks: "list[Check]") -> str:
    wide = max(len(check.name) for check in checks)
    lines = [f"{_MARKS[check.good]}{check.name:<{wide}}  {check.text}" for check in checks]
    return "\n".join([f"oomdoc {__version__}", *lines]) + "\n"
