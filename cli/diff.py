"""`oomdoc diff`: what holds more memory in one recording than in another."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from .options import OutputOption

if TYPE_CHECKING:
    from typing import TextIO

    from ..reports.model import Diff

EPILOG = """Examples:

[bold]oomdoc diff before.pickle after.pickle[/bold]  which categories and lines grew, and by how much

[bold]oomdoc diff .oomdoc/batch8 .oomdoc/batch16[/bold]  two runs, rank by rank

[bold]oomdoc diff --format markdown main.pickle branch.pickle[/bold]  for a pull request
"""


class DiffFormat(str, Enum):
    """What `--format` takes here."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A snapshot or a run directory.")],
    after: Annotated[str, typer.Argument(metavar="B", help="What to compare with it.")],
    form: Annotated[
        DiffFormat, typer.Option("--format", "-f", help="How it is written; `json` is a stable contract.")
    ] = DiffFormat.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Compare two recordings: how the memory at the peak changed, by category, by line and by block size.

    They may differ in length, batch or code. A line that moved is found again in its function, else by its module, else
    by the sizes of its blocks, and each row says how. Ranks and devices are compared one by one.
    """
    import sys

    from ..diagnosers.compare import compare
    from ..reports.model import Diff
    from .inputs import snapshot_files
    from .output import put, say, write_file
    from .pipeline import profile_files

    profiles = [profile_files(snapshot_files([each])) for each in (before, after)]
    found = Diff(before_path=before, after_path=after, comparison=compare(*profiles))
    if output is None:
        put(_render(found, form, sys.stdout))
    else:
        write_file(output, _render(found, form, None))
        say(f"wrote {output}")


def _render(found: "Diff", form: DiffFormat, stream: "TextIO | None") -> str:
    """`stream` is the terminal that will show it, None for a file."""
    from ..reports import diff_json, diff_markdown, diff_terminal
    from .output import colors, has_utf8, width

    if form is DiffFormat.JSON:
        return diff_json.render(found)
    if form is DiffFormat.MARKDOWN:
        return diff_markdown.render(found)
    return diff_terminal.render(found, width=width(stream), color=colors(stream), ascii_only=not has_utf8(stream))
