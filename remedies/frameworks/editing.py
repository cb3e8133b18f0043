"""The text of a config file: what it says, and the same text with one key set. YAML, JSON or TOML.

What is not touched keeps its order, comments and spelling. A new text is parsed before it is handed out: it says what
was asked for and nothing else, or the file is refused.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from ...errors import OomdocError, UnreadableInputError
from . import toml_text, yaml_text

MAX_CHARACTERS = 1 << 20  # a config of this size is not one
TOML = "toml"
YAML = "yaml"  # or JSON, which is told by its first brace


def parse(text: str, title: str, syntax: str = YAML, *, extras: bool = False) -> dict[str, Any]:
    """The mapping that `text` holds; {} for an empty text. Raises UnreadableInputError for anything else.

    `extras`: comments and a last comma are allowed in JSON.
    """
    if len(text) > MAX_CHARACTERS:
        raise UnreadableInputError(f"the {title} is larger than {MAX_CHARACTERS} characters: nothing was changed.")
    content = _read(text, title, syntax, extras)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UnreadableInputError(f"the {title} is not a mapping of keys: nothing was changed.")
    return content


def _read(text: str, title: str, syntax: str, extras: bool) -> Any:
    if syntax == TOML:
        try:
            return toml_text.parse(text)
        except ValueError as error:
            raise UnreadableInputError(f"the {title} is not valid TOML: {error}. Nothing was changed.") from error
    file = yaml_text.read(text)
    found = yaml_text.extras(text) if file.is_json and not extras else None
    if found is not None:
        raise UnreadableInputError(
            f"the {title} has {found[1]} in line {found[0]}, which JSON does not allow: take it out. "
            "Nothing was changed."
        )
    try:
        return yaml_text.parse(file)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = getattr(error, "lineno", None if mark is None else mark.line + 1)
        where = "" if line is None else f" (line {line}: {_problem(error)})"
        kind = "JSON" if file.is_json else "YAML or JSON"
        raise UnreadableInputError(f"the {title} is not valid {kind}{where}: nothing was changed.") from error


def _problem(error: Exception) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "msg", None) or error)


def get(content: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value at `path`, None where there is none."""
    at: Any = content
    for key in path:
        if not isinstance(at, Mapping) or key not in at:
            return None
        at = at[key]
    return at


def set_value(text: str, path: tuple[str, ...], value: Any, syntax: str = YAML) -> str:
    """`text` with `value` at `path`; unchanged when it is there already.

    Raises OomdocError, rather than write it, where the new text would not say that and nothing else (an anchor that
    is used elsewhere, for one).
    """
    if syntax == TOML:
        before = toml_text.parse(text)
        new = text if _same(get(before, path), value) else toml_text.set_value(text, path, value)
    else:
        file = yaml_text.read(text)
        before = yaml_text.parse(file)
        new = yaml_text.set_value(file, path, value)
    try:
        after = toml_text.parse(new) if syntax == TOML else yaml_text.parse(yaml_text.read(new))
        right = _same(after, _with(before, path, value))
    except (yaml.YAMLError, ValueError, OomdocError):
        right = False
    if not right:
        raise OomdocError(f"cannot set {'.'.join(path)} without touching the rest of the file: change it by hand.")
    return new


def _with(content: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    old = content if isinstance(content, dict) else {}
    return {**old, path[0]: _with(old.get(path[0]), path[1:], value)}


def _same(one: Any, other: Any) -> bool:
    """Equal values of equal types (True is not 1, NaN is NaN). Looks at each pair of shared parts once."""
    seen: set[tuple[int, int]] = set()

    def same(a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if isinstance(a, (dict, list)):
            if (id(a), id(b)) in seen:
                return True
            seen.add((id(a), id(b)))
            if isinstance(a, dict):
                return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
            return len(a) == len(b) and all(map(same, a, b))
        return bool(a == b) or (a != a and b != b)

    return same(one, other)
