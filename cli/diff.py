"""`oomdoc diff`: what holds more memory in one recording than in another."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from .options import OutputOption

if TYPE_CHECKING:
    from typing import TextIO

    from ..diagnosers.compare import DeviceComparison
    from ..gates.interface import Amount
    from ..reports.model import Diff

EPILOG = """Examples:

[bold]oomdoc diff before.pickle after.pickle[/bold]  which categories and lines grew, and by how much

[bold]oomdoc diff .oomdoc/batch8 .oomdoc/batch16[/bold]  two runs, rank by rank

[bold]oomdoc diff --fail-on-growth 2% main.pickle branch.pickle[/bold]  exit status 1 when the peak grew by more

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
    fail_on_growth: Annotated[
        str | None,
        typer.Option(
            "--fail-on-growth", metavar="SIZE|%", help="Exit with 1 when the peak of a device grew by more; 0 is any."
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Compare two recordings: how the memory at the peak changed, by category, by line and by block size.

    They may differ in length, batch or code. A line that moved is found again in its function, else by its module, else
    by the sizes of its blocks, and each row says how. Ranks and devices are compared one by one.
    With --fail-on-growth the exit status is 1 when a peak grew by more.
    """
    import sys

    from ..api.files import snapshot_files
    from ..api.pipeline import profile_files
    from ..diagnosers.compare import compare
    from ..gates.settings import parse_amount
    from ..reports.model import Diff
    from .output import note, put, write_file

    allowed = None if fail_on_growth is None else parse_amount(fail_on_growth)
    profiles = [profile_files(snapshot_files([each])) for each in (before, after)]
    found = Diff(before_path=before, after_path=after, comparison=compare(*profiles))
    if output is None:
        put(_render(found, form, sys.stdout))
    else:
        write_file(output, _render(found, form, None))
        note(f"wrote {output}")
    if allowed is not None and _grew(found, allowed):
        raise typer.Exit(1)


def _grew(found: "Diff", allowed: "Amount") -> bool:
    """Any device, by its allocated peak; by tensors where one of the two does not tell that."""
    from ..errors import OomdocError
    from .output import say

    if not found.comparison.devices:
        raise OomdocError("no device is in both recordings, so there is no growth to judge")
    grew = False
    for device in found.comparison.devices:
        before, after = device.before.peak.allocated_bytes, device.after.peak.allocated_bytes
        if before is None or after is None:
            before, after = device.before.peak.requested_bytes, device.after.peak.requested_bytes
        if after - before > allowed.of(before):
            say(_sentence(device, before, after))
            grew = True
    return grew


def _sentence(device: "DeviceComparison", before: int, after: int) -> str:
    from ..reports.diff_text import signed
    from ..reports.text import size

    where = f"rank {device.after.rank}, device {device.after.device}"
    return f"{where}: the peak grew by more than allowed: {size(before)} to {size(after)}, {signed(after - before)}"


def _render(found: "Diff", form: DiffFormat, stream: "TextIO | None") -> str:
    """`stream` is the terminal that will show it, None for a file."""
    from ..reports import diff_json, diff_markdown, diff_terminal
    from .output import Talk, colors, has_utf8, width

    if form is DiffFormat.JSON:
        return diff_json.render(found)
    if form is DiffFormat.MARKDOWN:
        return diff_markdown.render(found)
    return diff_terminal.render(
        found, width=width(stream), color=colors(stream), ascii_only=not has_utf8(stream), full=Talk.verbose
    )
