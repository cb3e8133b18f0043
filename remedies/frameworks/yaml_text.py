"""Set a key of a YAML or JSON mapping in its text: every byte that is not of the key stays as it is.

The text is parsed by PyYAML's safe loader, which is what the frameworks themselves read with, into nodes with
positions (JSON is YAML in flow style); a value is replaced in place, a missing key is put behind its siblings. A
round trip through a library that writes the whole file again would not do: of the 162 configs that torchtune and
Axolotl ship, ruamel.yaml's writes 6 back as they were.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ...errors import OomdocError, UnreadableInputError

_BY_HAND = "change it by hand."
# A string, or what JSON has no room for: comments, and a comma before a closing bracket.
_OF_JSON = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/|,(?=\s*(?:[}\]]|//|#|/\*))', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Text:
    """A file as it is (`text`), and as it is parsed (`plain`): of equal length, without what JSON does not have."""

    text: str
    plain: str
    is_json: bool

    @property
    def newline(self) -> str:
        first = self.text.find("\n")
        return "\r\n" if first > 0 and self.text[first - 1] == "\r" else "\n"

    @property
    def unit(self) -> str:
        """One level of indentation in the manner of the file."""
        indented = (line[: len(line) - len(line.lstrip(" \t"))] for line in self.text.splitlines() if line.strip())
        found = next((each for each in indented if each), "  ")
        return found if self.is_json or "\t" not in found else "  "

    @property
    def capitals(self) -> bool:
        """Whether the file writes True and False, as torchtune's do."""
        return not self.is_json and bool(re.search(r":[ ]+(True|False)\b", self.text))


def read(text: str) -> Text:
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return Text(text, text, False)
    plain = _without_extras(text)
    try:
        json.loads(plain.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        try:  # YAML in flow style
            yaml.compose(text, Loader=yaml.SafeLoader)
            return Text(text, text, False)
        except (yaml.YAMLError, RecursionError):
            return Text(text, plain, True)  # it is meant as JSON: parse() says what is wrong
    return Text(text, plain, True)


def extras(text: str) -> tuple[int, str] | None:
    """The line and the kind of the first thing in a JSON file that JSON does not have; None where it is all JSON."""
    for match in _OF_JSON.finditer(text):
        found = match.group()
        if found.startswith('"') or (found == "," and not _closes(text, match.end())):
            continue
        line = text.count("\n", 0, match.start()) + 1
        return line, "a comma before a closing bracket" if found == "," else "a comment"
    return None


def parse(file: Text) -> Any:
    """Its content. Raises ValueError, yaml.YAMLError or RecursionError; and UnreadableInputError for a key twice."""
    if file.is_json:
        return json.loads(file.plain.lstrip("\ufeff"), object_pairs_hook=_unique)
    root = yaml.compose(file.plain, Loader=yaml.SafeLoader)
    if root is not None:
        _check_unique(root, set())
    return yaml.safe_load(file.plain)


def set_value(file: Text, path: tuple[str, ...], value: Any) -> str:
    """The new text; what it says is the caller's to check."""
    root = yaml.compose(_spaced(file), Loader=yaml.SafeLoader)
    if root is None:
        start = "" if not file.text or file.text.endswith("\n") else file.newline
        return file.text + start + _line(file, path[0], _nested(path[1:], value), "") + file.newline
    if not isinstance(root, MappingNode):
        raise UnreadableInputError("the file is not a mapping of keys: nothing was changed.")
    node: Node = root
    before, flow = None, False
    for depth, key in enumerate(path):
        if not isinstance(node, MappingNode):
            # something else stands where a mapping should be (null, a path): replace it whole
            return _replace(file, before, node, _nested(path[depth:], value), flow)
        flow = bool(node.flow_style)
        pair = next(((k, v) for k, v in node.value if isinstance(k, ScalarNode) and k.value == key), None)
        if pair is None:
            return _insert(file, node, key, _nested(path[depth + 1 :], value))
        before, node = pair
        alias = _alias(file, before)
        if alias is not None and depth + 1 == len(path):
            return file.text[: alias.start()] + _render(file, value) + file.text[alias.end() :]
        if alias is not None:
            raise OomdocError(f"{'.'.join(path[: depth + 1])} is {alias.group()}, an alias: {_BY_HAND}")
    return _replace(file, before, node, value, flow)


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


# --- reading ---


def _without_extras(text: str) -> str:
    def blank(match: "re.Match[str]") -> str:
        found = match.group()
        if found.startswith('"') or (found == "," and not _closes(text, match.end())):
            return found
        return re.sub(r"[^\r\n]", " ", found)

    return _OF_JSON.sub(blank, text)


def _closes(text: str, index: int) -> bool:
    """Whether nothing but comments stand between `index` and a closing bracket."""
    gap = re.compile(r"(?:\s|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL).match(text, index)
    return gap is not None and text[gap.end() : gap.end() + 1] in ("}", "]")


def _spaced(file: Text) -> str:
    """Tabs between the values of JSON are none for PyYAML: spaces in their place, at the same positions."""
    return file.plain.replace("\t", " ") if file.is_json else file.plain


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise UnreadableInputError(f"the key {key!r} is there twice: take one out. Nothing was changed.")
        content[key] = value
    return content


def _check_unique(node: Node, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, MappingNode):
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.value != "<<":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise UnreadableInputError(
                        f"the key {key.value!r} is there twice (lines {lines[key.value]} and {line}): take one out. "
                        "Nothing was changed."
                    )
                lines[key.value] = line
    for child in _children(node):
        _check_unique(child, seen)


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, SequenceNode):
        yield from node.value


# --- writing ---


def _replace(file: Text, key: Node | None, node: Node, value: Any, flow: bool) -> str:
    """`key` is the one whose value `node` is, in a mapping in flow style or not."""
    text = file.text
    start, end = node.start_mark.index, _last_index(node)
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        end = len(text[:end].rstrip())
    before = yaml.SafeLoader("").construct_document(node) if not isinstance(node, MappingNode) else None
    if type(before) is type(value) and before == value:
        return text
    if isinstance(node, MappingNode) and not node.flow_style and not isinstance(value, Mapping):
        raise OomdocError(f"a mapping in the file stands where a single value belongs: {_BY_HAND}")
    one_line = isinstance(node, ScalarNode) and "\n" not in text[start:end]
    if isinstance(value, Mapping) and one_line and key is not None and not flow:
        return _fill(file, key, start, end, value)
    if isinstance(node, SequenceNode) and not node.flow_style and not text[:start].rstrip(" ").endswith(":"):
        # its first dash stands on a line of its own: the new value goes back to the line of its key
        start = text.rfind(":", 0, start) + 1
    gap = " " if start > 0 and text[start - 1] == ":" else ""
    quotes = node.style if isinstance(node, ScalarNode) and node.style in ("'", '"') else None
    return text[:start] + gap + _render(file, value, quotes) + text[end:]


def _fill(file: Text, key: Node, start: int, end: int, value: Mapping[str, Any]) -> str:
    """A key with nothing or one word behind it gets a mapping, below its own line and the comment on it."""
    indent = " " * key.start_mark.column + file.unit
    lines = file.newline.join(indent + _line(file, k, v, indent) for k, v in value.items())
    text = file.text[:start].rstrip(" ") + file.text[end:]
    return _below(file, text, _end_of_line(text, len(file.text[:start].rstrip(" "))), lines)


def _insert(file: Text, node: MappingNode, key: str, value: Any) -> str:
    if node.flow_style:
        return _insert_flow(file, node, key, value)
    indent = " " * node.value[0][0].start_mark.column if node.value else ""
    end = _end_of_pair(file, *node.value[-1])
    return _below(file, file.text, end, indent + _line(file, key, value, indent))


def _below(file: Text, text: str, end: int, lines: str) -> str:
    start = text[:end] if text[:end].endswith("\n") or not text[:end] else text[:end] + file.newline
    return start + lines + file.newline + text[end:]


def _insert_flow(file: Text, node: MappingNode, key: str, value: Any) -> str:
    """Behind the last pair, in the manner of the file: a line of its own where its siblings have one."""
    text = file.text
    close = node.end_mark.index - 1
    pair = f"{json.dumps(key) if file.is_json else key}: {_render(file, value)}"
    if not node.value:
        if file.is_json and not text[: node.start_mark.index].strip("\ufeff \t\r\n"):
            inner = _pretty(file, key, value, file.unit)
            return f"{text[:close].rstrip()}{file.newline}{inner}{file.newline}{text[close:]}"
        return text[:close].rstrip() + pair + text[close:]
    first, last = node.value[0][0], node.value[-1][1]
    end = _last_index(last)
    if first.start_mark.line == node.start_mark.line:
        return text[:end] + ", " + pair + text[end:]
    line_start = text.rfind("\n", 0, first.start_mark.index) + 1
    indent = text[line_start : first.start_mark.index]
    if file.is_json:
        pair = _pretty(file, key, value, indent).lstrip()
    # what stands behind the last pair on its line is a comment, and perhaps its comma
    line_end = min(_visible_end(text, end), close)
    behind = text[end:line_end]
    comma = file.is_json and "," in re.sub(r"(//|#|/\*).*", "", behind)
    closing = "," if comma else ""
    return f"{text[:end]}{'' if comma else ','}{behind}{file.newline}{indent}{pair}{closing}{text[line_end:]}"


def _pretty(file: Text, key: str, value: Any, indent: str) -> str:
    unit = file.unit
    body = json.dumps(value, indent=unit) if isinstance(value, Mapping) else json.dumps(value)
    return f"{indent}{json.dumps(key)}: " + body.replace("\n", file.newline + indent)


def _visible_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    end = len(text) if end < 0 else end
    return len(text[:end].rstrip())


def _alias(file: Text, key: Node) -> "re.Match[str] | None":
    """The alias (`*name`) that stands behind a key."""
    if file.is_json:
        return None
    colon = re.compile(r"\s*:\s+").match(file.text, key.end_mark.index)
    return re.compile(r"\*[^\s,\[\]{}]+").match(file.text, colon.end()) if colon else None


def _last_index(node: Node) -> int:
    """Where the text of a node ends: of a block mapping or sequence, where its last scalar does."""
    if isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_index(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _end_of_pair(file: Text, key: Node, node: Node) -> int:
    """Behind the line on which the last text of a pair ends."""
    alias = _alias(file, key)
    if alias is not None:
        return _end_of_line(file.text, alias.end())
    while isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style and node.value:
        last = node.value[-1]
        if isinstance(last, tuple):
            return _end_of_pair(file, *last)
        node = last
    end = int(node.end_mark.index)
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        # its end is the start of the line after it, or of what comes then
        header = file.text[node.start_mark.index : _end_of_line(file.text, node.start_mark.index)]
        end = end if "+" in header else len(file.text[:end].rstrip())
        return end if file.text[:end].endswith("\n") else _end_of_line(file.text, end)
    return _end_of_line(file.text, end)


def _end_of_line(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _line(file: Text, key: str, value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        inner = indent + file.unit
        lines = [f"{inner}{_line(file, k, v, inner)}" for k, v in value.items()]
        return file.newline.join([f"{key}:", *lines])
    return f"{key}: {_render(file, value)}"


def _render(file: Text, value: Any, quotes: str | None = None) -> str:
    """In flow style, which YAML and JSON share."""
    if isinstance(value, bool) and file.capitals:
        return str(value)
    if file.is_json or isinstance(value, (int, float)) or value is None:
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_render(file, each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_render(file, each) for each in value) + "]"
    return _string(str(value), quotes)


def _string(value: str, quotes: str | None) -> str:
    if quotes == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    word = re.fullmatch(r"[A-Za-z_][\w./-]*", value)
    return value if quotes is None and word and yaml.safe_load(value) == value else json.dumps(value)
