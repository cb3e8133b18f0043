"""`oomdoc analyze FILE...` in its plainest form, without the command-line library.

Typer and what it checks values with take as long to import as analyzing a small file. A command line of targets and
at most a format needs neither; any other, wrong ones included, is left to the Typer application.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .ending import exit_status
from .format import Format

_FORMATS = {each.value: each for each in Format}


@dataclass(frozen=True, slots=True)
class Request:
    """What `analyze` is called with."""

    targets: list[str]
    form: Format = Format.TERMINAL


def parse(arguments: Sequence[str]) -> Request | None:
    """None for what the Typer application has to read."""
    if sys.platform == "win32" or list(arguments[:1]) != ["analyze"]:  # there it also expands *.pickle
        return None
    targets: list[str] = []
    forms: list[Format] = []
    rest = iter(arguments[1:])
    for each in rest:
        if each in ("--format", "-f"):
            form = _FORMATS.get(next(rest, ""))
            if form is None:
                return None
            forms.append(form)
        elif each.startswith("-"):
            return None
        else:
            targets.append(each)
    return Request(targets, *forms) if len(forms) <= 1 else None


def run(request: Request) -> int:
    """-> exit status."""
    try:
        from .analysis import report_files

        return report_files(request.targets, form=request.form)
    except (Exception, KeyboardInterrupt) as error:
        return exit_status(error)
