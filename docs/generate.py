"""Pages that are not typed twice: causes and remedies from what `oomdoc explain` prints, commands from their help.

A hook of MkDocs (mkdocs.yml).
"""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import oomdoc
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from oomdoc.cli.explain import pages

_SECTION = re.compile(r"^(\S[^:\n]*)$\n(?=    \S)", re.MULTILINE)  # a title, with its text indented below it
_LABEL = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)*): ", re.MULTILINE)
_ENTRY = re.compile(r"^([a-z][a-z0-9]*(?:-[a-z0-9]+)+): ", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the generated pages into the navigation."""
    causes, remedies = _modules()
    for entry in config.nav or []:
        if "Causes" in entry:
            entry["Causes"] += [{f"{each.CODE} {each.NAME}": f"causes/{each.CODE}.md"} for each in causes]
        if "Remedies" in entry:
            entry["Remedies"] += [{each.NAME: f"remedies/{each.NAME}.md"} for each in remedies]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    return files


def generated() -> Mapping[str, str]:
    """Markdown of each generated page, by its path."""
    causes, remedies = _modules()
    known = {each.NAME for each in remedies}
    found = {f"causes/{each.CODE}.md": _cause(each, known) for each in causes}
    found |= {f"remedies/{each.NAME}.md": _remedy(each, causes) for each in remedies}
    rows = (f"| [{each.CODE}]({each.CODE}.md) | {each.NAME} | {_first_line(each)} |" for each in causes)
    found["causes/index.md"] = _index(
        "Causes", "What `oomdoc` finds, and how sure it can be.", ("code", "name", ""), rows
    )
    rows = (f"| [{each.NAME}]({each.NAME}.md) | {_first_line(each)} |" for each in remedies)
    found["remedies/index.md"] = _index(
        "Remedies",
        "What `plan` predicts and `fix` writes; cheapest first where nothing else decides.",
        ("name", ""),
        rows,
    )
    found["commands.md"] = "\n\n".join(["# Commands", *_commands()]) + "\n"
    found["api.md"] = "\n\n".join(["# The Python API", *_api()]) + "\n"
    return found


def _api() -> Iterator[str]:
    """What `import oomdoc` gives, with its docstrings and those of its public members."""
    yield _literal(inspect.getdoc(oomdoc))
    for name in sorted(set(oomdoc.__all__) - {"__version__"}):
        thing = getattr(oomdoc, name)
        yield f"## {name}\n\n{_signature(name, thing)}\n\n{_literal(inspect.getdoc(thing))}"
        members = vars(thing) if isinstance(thing, type) and not issubclass(thing, Exception) else {}
        for member, what in members.items():
            if not member.startswith("_") and inspect.getdoc(what) and (callable(what) or isinstance(what, property)):
                yield f"### {name}.{member}\n\n{_signature(member, what)}\n\n{_literal(inspect.getdoc(what))}"


def _signature(name: str, thing: Any) -> str:
    try:
        return f"```python\n{name}{inspect.signature(thing)}\n```"
    except (TypeError, ValueError):
        return ""


def _literal(docstring: str | None) -> str:
    """Indented lines of a docstring are code; the rest is prose."""
    lines = (docstring or "").splitlines()
    return "\n".join(line if line.startswith("    ") else _escaped(line) for line in lines)


def _modules() -> tuple[list[Any], list[Any]]:
    modules = list(dict.fromkeys(pages().values()))
    causes = sorted((each for each in modules if hasattr(each, "CODE")), key=lambda each: str(each.CODE))
    return causes, [each for each in modules if not hasattr(each, "CODE")]


def _cause(module: Any, known: set[str]) -> str:
    links = [f"[`{name}`](../remedies/{name}.md)" if name in known else f"`{name}`" for name in module.REMEDIES]
    tail = f"\n\n## Remedies\n\n{', '.join(links)}" if links else ""
    return f"# {module.CODE} {module.NAME}\n\n{markdown(module.__doc__)}{tail}\n"


def _remedy(module: Any, causes: Iterable[Any]) -> str:
    named = [f"[{each.CODE} {each.NAME}](../causes/{each.CODE}.md)" for each in causes if module.NAME in each.REMEDIES]
    tail = f"\n\n## Suggested by\n\n{', '.join(named)}" if named else ""
    return f"# {module.NAME}\n\n{markdown(module.__doc__)}{tail}\n"


def markdown(docstring: str | None) -> str:
    """A page as `oomdoc explain` prints it, its sections as headings and its entries as lists."""
    text = _escaped(inspect.cleandoc(docstring or ""))
    parts = _SECTION.split(text)
    first, _, labelled = parts[0].partition("\n\n")
    out = [first, _LABEL.sub(r"\n**\1.** ", labelled).strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        inner = re.sub(r"^    ", "", body, flags=re.MULTILINE).strip()
        listed = _ENTRY.sub(r"\n- **`\1`**: ", inner).strip()
        out.append(f"## {title}\n\n{listed}")
    return "\n\n".join(out)


def _escaped(text: str) -> str:
    """Outside of `code`, signs that Markdown and HTML take for markup."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([<>*_\[\]])", r"\\\1", part)
        for part in re.split(r"(`[^`]*`)", text)
    )


def _first_line(module: Any) -> str:
    return _escaped(inspect.cleandoc(module.__doc__ or "").split("\n", 1)[0]).replace("|", "\\|")


def _index(title: str, lead: str, header: tuple[str, ...], rows: Iterable[str]) -> str:
    head = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([f"# {title}", "", lead, "", *head, *rows, ""])


def _commands() -> Iterator[str]:
    """Each command's `--help`, as a person sees it."""
    yield f"```text\n{_help()}\n```"
    for name in re.findall(r"^│ (\w+) ", _help().split("Commands", 1)[1], re.MULTILINE):
        yield f"## oomdoc {name}\n\n```text\n{_help(name)}\n```"


def _help(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "oomdoc", *command, "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in run.stdout.strip("\n").splitlines())
