"""`oomdoc explain`: the page of a cause or a remedy, which is its module's docstring."""

import inspect
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ..errors import OomdocError
from .output import colors, put, width

EPILOG = """Examples:

[bold]oomdoc explain OOM004[/bold]  a cause, by its code

[bold]oomdoc explain activation-checkpointing[/bold]  a remedy, by its name

[bold]oomdoc explain[/bold]  what there is
"""


def explain(
    name: Annotated[
        str | None, typer.Argument(metavar="[CODE|NAME]", help="OOM004, or activation-checkpointing.")
    ] = None,
) -> None:
    """Print the page of a cause or a remedy: what it means, the evidence, its limits, what it changes."""
    put(_index() if name is None else _draw(_page(name)))


def pages() -> dict[str, Any]:
    """Every module with a page, by code and by name."""
    found = {module.CODE: module for module in _modules(_causes())}
    found |= {module.NAME: module for module in _modules(_causes())}
    found |= {module.NAME: module for module in _modules(_remedies())}
    return found


def _causes() -> Mapping[str, Any]:
    from ..diagnosers.all_causes import DIAGNOSERS

    return DIAGNOSERS


def _remedies() -> Mapping[str, Any]:
    from ..remedies.all_remedies import REMEDIES

    return REMEDIES


def _modules(registry: Mapping[str, Any]) -> list[Any]:
    return list(registry.values())


def _page(name: str) -> str:
    known = pages()
    module = known.get(name) or known.get(name.upper()) or known.get(name.lower())
    if module is None:
        wanted = name.lower()
        naming = [cause for cause in _modules(_causes()) if wanted in cause.REMEDIES]
        if naming:
            best = max(naming, key=lambda cause: _says_of(cause, wanted))
            raise OomdocError(f"{wanted} has no page of its own; {best.CODE} names it: oomdoc explain {best.CODE}")
        import difflib

        near = difflib.get_close_matches(name.lower(), [each.lower() for each in known], n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`oomdoc explain` lists what there is"
        raise OomdocError(f"there is no page {name!r}; {hint}")
    head = f"# {module.CODE} {module.NAME}" if hasattr(module, "CODE") else f"# {module.NAME}"
    text = inspect.cleandoc(module.__doc__ or "")
    tail = ""
    if hasattr(module, "REMEDIES") and module.REMEDIES:
        tail = "\n\nRemedies: " + ", ".join(f"`{remedy}`" for remedy in module.REMEDIES)
    return f"{head}\n\n{text}{tail}\n"


def _says_of(cause: Any, remedy: str) -> int:
    """How much a cause's page says of a remedy: an entry of its own, a mention, nothing."""
    page = inspect.cleandoc(cause.__doc__ or "")
    return 2 if f"    {remedy}:" in page else int(remedy in page)


def _draw(page: str) -> str:
    """Markdown drawn on a terminal, the text itself in a pipe."""
    if not sys.stdout.isatty():
        return page
    from rich.markdown import Markdown

    from ..reports.canvas import draw

    return draw(lambda console: [Markdown(page)], width=min(100, width(sys.stdout)), color=colors(sys.stdout))


def _index() -> str:
    causes = sorted(_modules(_causes()), key=lambda module: str(module.CODE))
    lines = ["Causes"] + [f"  {module.CODE}  {module.NAME}: {_first_line(module)}" for module in causes]
    lines += ["", "Remedies"] + [f"  {module.NAME}: {_first_line(module)}" for module in _modules(_remedies())]
    return "\n".join([*lines, ""])


def _first_line(module: Any) -> str:
    return inspect.cleandoc(module.__doc__ or "").split("\n", 1)[0]
