"""Set keys of a YAML or JSON mapping in its text: what is not touched keeps its order, comments and spelling.

The text is parsed by PyYAML's safe loader into nodes with positions (JSON is YAML in flow style); a value is replaced
in place, a missing key is put behind its siblings. A later edit parses again, so positions are never stale.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from ...errors import OomdocError, UnreadableInputError


def parse(text: str, title: str) -> dict[str, Any]:
    """The mapping that `text` holds; {} for an empty text. Raises UnreadableInputError for anything else."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise UnreadableInputError(f"the {title} is not valid YAML or JSON{where}: nothing was changed.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UnreadableInputError(f"the {title} is not a mapping of keys: nothing was changed.")
    return content


def get(content: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value at `path`, None where there is none."""
    at: Any = content
    for key in path:
        if not isinstance(at, Mapping) or key not in at:
            return None
        at = at[key]
    return at


def set_value(text: str, path: tuple[str, ...], value: Any) -> str:
    """`text` with `value` at `path`; unchanged when it is there already.

    Raises OomdocError, rather than write it, where the new text would not say that and nothing else (an anchor that
    is used elsewhere, for one).
    """
    new = _edited(text, path, value)
    try:
        right = yaml.safe_load(new) == _with(yaml.safe_load(text), path, value)
    except yaml.YAMLError:
        right = False
    if not right:
        raise OomdocError(f"cannot set {'.'.join(path)} without touching the rest of the file: change it by hand.")
    return new


def _with(content: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    old = content if isinstance(content, dict) else {}
    return {**old, path[0]: _with(old.get(path[0]), path[1:], value)}


def _edited(text: str, path: tuple[str, ...], value: Any) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        start = "" if not text or text.endswith("\n") else "\n"
        return text + start + _line(path[0], _nested(path[1:], value), "") + "\n"
    if not isinstance(root, MappingNode):
        raise UnreadableInputError("the file is not a mapping of keys: nothing was changed.")
    node: Node = root
    for depth, key in enumerate(path):
        if not isinstance(node, MappingNode):
            # something else stands where a mapping should be (null, a path): replace it whole
            return _replace(text, node, _nested(path[depth:], value))
        found = next((v for k, v in node.value if isinstance(k, ScalarNode) and k.value == key), None)
        if found is None:
            return _insert(text, node, key, _nested(path[depth + 1 :], value))
        node = found
    return _replace(text, node, value)


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _replace(text: str, node: Node, value: Any) -> str:
    start, end = node.start_mark.index, _last_index(node)
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        end = len(text[:end].rstrip())
    before = yaml.SafeLoader("").construct_document(node) if not isinstance(node, MappingNode) else None
    if type(before) is type(value) and before == value:
        return text
    if isinstance(node, MappingNode) and not node.flow_style and not isinstance(value, Mapping):
        raise OomdocError("a mapping in the file stands where a single value belongs: change it by hand.")
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and not text[:start].rstrip(" ").endswith(":"):
        # its first dash stands on a line of its own: the new value goes back to the line of its key
        start = text.rfind(":", 0, start) + 1
    gap = " " if start > 0 and text[start - 1] == ":" else ""
    return text[:start] + gap + (_json(value) if _is_json(text) else _render(value)) + text[end:]


def _insert(text: str, node: MappingNode, key: str, value: Any) -> str:
    if node.flow_style:
        return _insert_flow(text, node, key, value)
    indent = " " * node.value[0][0].start_mark.column if node.value else ""
    last = node.value[-1][1] if node.value else node
    end = _end_of_line(text, _last_index(last))
    before = text[:end] if text[:end].endswith("\n") or not text[:end] else text[:end] + "\n"
    return before + indent + _line(key, value, indent) + "\n" + text[end:]


def _insert_flow(text: str, node: MappingNode, key: str, value: Any) -> str:
    """Behind the last pair, in the manner of the file: a line of its own where its siblings have one."""
    pair = f"{json.dumps(key)}: {_json(value)}" if _is_json(text) else f"{key}: {_render(value)}"
    close = node.end_mark.index - 1
    if not node.value:
        return text[:close].rstrip() + pair + text[close:]
    first, last = node.value[0][0], node.value[-1][1]
    own_line = first.start_mark.line > node.start_mark.line
    end = _last_index(last)
    if own_line:
        line_start = text.rfind("\n", 0, first.start_mark.index) + 1
        indent = text[line_start : first.start_mark.index]
        if isinstance(value, Mapping) and _is_json(text):
            body = json.dumps(value, indent=_unit(text)).replace("\n", "\n" + indent)
            pair = f"{json.dumps(key)}: {body}"
        return text[:end] + ",\n" + indent + pair + text[end:]
    return text[:end] + ", " + pair + text[end:]


def _unit(text: str) -> str:
    """One level of indentation in the manner of the file."""
    indented = (line[: len(line) - len(line.lstrip())] for line in text.splitlines() if line.strip())
    return next((each for each in indented if each), "  ")


def _last_index(node: Node) -> int:
    """Where the text of a node ends: of a block mapping or sequence, where its last scalar does."""
    if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_index(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _end_of_line(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _line(key: str, value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        inner = [f"{indent}  {_line(k, v, indent + '  ')}" for k, v in value.items()]
        return "\n".join([f"{key}:", *inner])
    return f"{key}: {_render(value)}"


def _render(value: Any) -> str:
    """In flow style, which YAML and JSON share."""
    return _json(value) if not isinstance(value, str) else _string(value)


def _string(value: str) -> str:
    word = value.replace("_", "").replace("-", "").isalnum() and not value[0].isdigit()
    return value if word and yaml.safe_load(value) == value else json.dumps(value)


def _json(value: Any) -> str:
    return json.dumps(value)


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")
