"""What stands below the table of a plan: the Pareto front, what would make it fit, the time of collectives."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..remedies.interface import Candidate, Communication, Exchange, Plan
from .text import factor, size

COMMUNICATION = "Between the GPUs"
HEADS = ("", "collective", "each", "a step", "how", "bound by")


def front(shown: Sequence[Candidate]) -> Iterator[RenderableType]:
    numbers = [str(number) for number, each in enumerate(shown, 1) if each.pareto]
    if numbers:
        yield Text(f"Pareto front (less memory only for more time or other numbers): {', '.join(numbers)}", style="dim")


def notes(plan: Plan) -> Iterator[RenderableType]:
    for sentence in plan.way_out:
        yield Text.assemble(("· ", "yellow"), as_sentence(sentence))
    if plan.communication is not None:
        yield from _communication(plan.communication)


def as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _communication(found: Communication) -> Iterator[RenderableType]:
    yield Text("")
    yield Text.assemble((f"{COMMUNICATION}: ", "bold"), found.advice, ".")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in HEADS:
        # the strategy is never cut off; where the terminal is narrow, the other cells take a second line
        table.add_column(name, no_wrap=name == "", min_width=4, overflow="fold")
    for each in found.exchanges:
        table.add_row(*row(each))
    yield table
    for name, text in a_step(found):
        yield Text.assemble((f"{name}: ", "bold"), text)
    for what, why in reasons(found):
        yield Text.assemble((f"{what}: ", "dim"), (why, "dim"))


def a_step(found: Communication) -> Iterator[tuple[str, str]]:
    """(strategy, its time of collectives in a step)."""
    for name, seconds in found.seconds.items():
        slower = found.step_time_factor.get(name)
        text = f", step time {factor(slower)}" if slower else ""
        yield name, f"{1e3 * seconds:.1f} ms of collectives a step{text}"


def reasons(found: Communication) -> Iterator[tuple[str, str]]:
    for each in found.exchanges:
        yield f"{each.strategy}, {each.collective} of {each.what}", each.why


def row(each: Exchange) -> tuple[str, ...]:
    where = {"intra": "the node's links", "inter": "the network"}.get(each.bound, each.bound)
    one, all_of_them = f"{1e6 * each.seconds:.0f} us", f"{1e3 * each.count * each.seconds:.1f} ms"
    words = f"{each.collective} of {size(each.nbytes)}"
    return each.strategy, words, one, f"{each.count} x = {all_of_them}", f"{each.algorithm}, {each.protocol}", where
