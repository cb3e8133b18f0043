"""One key set in the text of a config: that key and nothing else, byte for byte."""

import json
import re
from typing import Any

import pytest
import tomlkit
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st
from oomdoc.errors import OomdocError, UnreadableInputError
from oomdoc.remedies.frameworks.editing import TOML, get, parse, set_value

words = st.text("abcdefgh_", min_size=1, max_size=6).filter(lambda w: w != "_")
values = st.one_of(st.integers(-9, 9), st.booleans(), words, st.lists(words, max_size=2))
trees = st.recursive(
    st.dictionaries(words, values, min_size=1, max_size=4),
    lambda children: st.dictionaries(words, st.one_of(values, children), min_size=1, max_size=3),
    max_leaves=6,
)
STYLES = ["block", "json", "tabbed json", "one line", "hjson", "toml"]


def _text(tree: dict[str, Any], style: str) -> str:
    if style == "block":
        return yaml.safe_dump(tree, sort_keys=False)
    if style == "toml":
        return tomlkit.dumps(tree)
    indent: Any = {"json": 4, "tabbed json": "\t", "hjson": 2}.get(style)
    text = json.dumps(tree, indent=indent)
    return re.sub(r",\n", ', // why, "so"\n', text) if style == "hjson" else text


def _remarked(text: str, style: str, marks: list[int]) -> str:
    """Comments behind some lines, and on lines of their own."""
    if style not in ("block", "toml"):
        return text
    lines = text.splitlines()
    for number in marks:
        at = number % len(lines)
        if number % 2:
            lines[at] += f"  # note {number}"
        else:
            lines.insert(at, f"# line {number}")
    return "\n".join(lines) + "\n"


def _content(text: str, style: str) -> Any:
    return parse(text, "file", TOML if style == "toml" else "yaml", extras=True)


@example(tree={"a": 0}, path=["a"], value="a", style="json", marks=[], crlf=False)
@example(tree={"a": ["a"]}, path=["a"], value=0, style="block", marks=[], crlf=False)
@example(tree={"a": 1}, path=["a"], value=True, style="block", marks=[1], crlf=True)
@given(
    tree=trees,
    path=st.lists(words, min_size=1, max_size=3),
    value=values,
    style=st.sampled_from(STYLES),
    marks=st.lists(st.integers(0, 40), max_size=4),
    crlf=st.booleans(),
)
def test_setting_a_key_changes_that_key_and_nothing_else(
    tree: dict[str, Any], path: list[str], value: Any, style: str, marks: list[int], crlf: bool
) -> None:
    text = _remarked(_text(tree, style), style, marks)
    text = text.replace("\n", "\r\n") if crlf else text
    syntax = TOML if style == "toml" else "yaml"
    before = get(tree, tuple(path))
    parents = [get(tree, tuple(path[:depth])) for depth in range(1, len(path))]
    assume(not isinstance(before, dict))
    expected = json.loads(json.dumps(tree))
    at = expected
    for key in path[:-1]:
        if not isinstance(at.get(key), dict):
            at[key] = {}
        at = at[key]
    at[path[-1]] = value
    try:
        new = set_value(text, tuple(path), value, syntax)
    except OomdocError:
        # a list over several lines, or a value where TOML has no table, is left to its owner
        blocked = any(parent is not None and not isinstance(parent, dict) for parent in parents)
        assert (style == "toml" and blocked) or isinstance(before, list) or any(isinstance(p, list) for p in parents)
        return
    assert repr(_content(new, style)) == repr(expected) or _content(new, style) == expected
    assert set_value(new, tuple(path), value, syntax) == new
    _same_lines_but_one(text, new, before, parents)
    if style in ("json", "tabbed json", "one line"):
        assert json.loads(new) == expected


def _same_lines_but_one(text: str, new: str, before: Any, parents: list[Any]) -> None:
    """A missing key adds lines and takes none away (in JSON, one gets its comma); a present one changes its own."""
    old_lines, new_lines = text.split("\n"), iter(new.split("\n"))
    lost = [line for line in old_lines if not any(line == other for other in new_lines)]
    whole = before is None and all(isinstance(parent, dict) or parent is None for parent in parents)
    if whole and "\n" in text.strip() and not text.lstrip().startswith("{"):
        assert lost == []


@pytest.mark.parametrize(
    ("text", "path", "value", "new"),
    [
        ("a: >\n  text\n  more\nb: 1\n", "a", 7, "a: 7\nb: 1\n"),
        ("a:\n- x # c\nb: 1\n", "a", 7, "a: 7 # c\nb: 1\n"),
        ("a: # why\n  - x\nb: 1\n", "a", 7, "a: 7\nb: 1\n"),
        ("a: null # c\n", "a", 7, "a: 7 # c\n"),
        ("---\na: {b: 1}\n...\n", "a", 7, "---\na: 7\n...\n"),
        ("a: {b: 1}\n", "a.c.d", 7, "a: {b: 1, c: {d: 7}}\n"),
        ("a:  # none yet\nb: 1\n", "a.c", 7, "a:  # none yet\n  c: 7\nb: 1\n"),
        ("a: ddp  # why\n", "a.c.d", "x.Y", "a:  # why\n  c:\n    d: x.Y\n"),
        ("a: 'no'\n", "a", "bf16", "a: 'bf16'\n"),
        ("a: False  # True\nb: 1\n", "c", True, "a: False  # True\nb: 1\nc: True\n"),
        ("a: &x 5\nb: *x # c\n", "b", 7, "a: &x 5\nb: 7 # c\n"),
        ("x: &x 1\nm:\n  b: *x\nn: 1\n", "m.c", 7, "x: &x 1\nm:\n  b: *x\n  c: 7\nn: 1\n"),
        ("d: &d\n  q: 1\ne:\n  <<: *d\n", "e.q", 7, "d: &d\n  q: 1\ne:\n  <<: *d\n  q: 7\n"),
        ("m:\n  t: |\n    hi\n\n    you\n\nn: 1\n", "m.c", 7, "m:\n  t: |\n    hi\n\n    you\n  c: 7\n\nn: 1\n"),
        ("m:\n  t: |+\n    hi\n\nn: 1\n", "m.c", 7, "m:\n  t: |+\n    hi\n\n  c: 7\nn: 1\n"),
        ("a: .nan\n", "b", 7, "a: .nan\nb: 7\n"),
        ('{\n\t"a": 1, // x\n\t"b": 2 /* , */\n}\n', "c", 7, '{\n\t"a": 1, // x\n\t"b": 2, /* , */\n\t"c": 7\n}\n'),
        ('{\n  "a": 1,  # last\n}\n', "c", 7, '{\n  "a": 1,  # last\n  "c": 7,\n}\n'),
        ('{"a": "x,}//"}', "c", 7, '{"a": "x,}//", "c": 7}'),
        ("{}\n", "a.b", 7, '{\n  "a": {\n    "b": 7\n  }\n}\n'),
    ],
)
def test_a_value_of_any_style_is_replaced_in_the_manner_of_the_file(text: str, path: str, value: Any, new: str) -> None:
    assert set_value(text, tuple(path.split(".")), value) == new


@pytest.mark.parametrize(
    ("text", "path", "new"),
    [
        ("[t] # x\na = 1 # c\n\n# next\n[m]\nb = 1\n", "t.k", "[t] # x\na = 1 # c\nk = 7\n\n# next\n[m]\nb = 1\n"),
        ("[t]\n[t.u]\nx=1\n# n\n[m]\n", "t.k", "[t]\nk = 7\n[t.u]\nx=1\n# n\n[m]\n"),
        ("[t]\na = [\n  [1],\n]\n[m]\n", "t.k", "[t]\na = [\n  [1],\n]\nk = 7\n[m]\n"),
        ("[t]\r\na = 1\r\n", "m.k", "[t]\r\na = 1\r\n\r\n[m]\r\nk = 7\r\n"),
        ("t.a = 1  # c\n", "t.a", "t.a = 7  # c\n"),
    ],
)
def test_a_key_of_toml_stands_with_its_siblings(text: str, path: str, new: str) -> None:
    assert set_value(text, tuple(path.split(".")), 7, TOML) == new


@pytest.mark.parametrize("text", ["a: &x 5\nb: *x\n", "a: {c: 1}\nd: *e\n"])
def test_what_cannot_be_set_alone_is_refused(text: str) -> None:
    with pytest.raises((OomdocError, yaml.YAMLError)):
        set_value(text, ("a",), 7)
    with pytest.raises(OomdocError, match="alias"):
        set_value("a: &x {q: 1}\nb: *x\n", ("b", "q"), 7)


@pytest.mark.parametrize(
    ("text", "syntax", "says"),
    [
        ('{\n  "a": 1, // x\n  "b": 2\n}', "yaml", "a comment in line 2, which JSON does not allow"),
        ('{"a": 1,\n}', "yaml", "a comma before a closing bracket in line 1"),
        ('{"a": 1, "a": 2}', "yaml", "'a' is there twice"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "yaml", "'c' is there twice (lines 3 and 4)"),
        ("a:\n\t- b\n", "yaml", "line 2: found character '\\t'"),
        ("a: !secret x\n", "yaml", "the tag '!secret'"),
        ("a: 1\n---\nb: 1\n", "yaml", "another document"),
        ("[a\nb = 1\n", TOML, "at line 1"),
        ("a = 1\na = 2\n", TOML, "already"),
        ("[" * 2000, "yaml", "not valid"),
        ("- 1\n", "yaml", "not a mapping"),
        ("a: " + "x" * (1 << 20), "yaml", "larger"),
    ],
)
def test_a_broken_file_is_told_in_one_line(text: str, syntax: str, says: str) -> None:
    with pytest.raises(UnreadableInputError) as caught:
        parse(text, "config", syntax)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).rstrip(".").lower().endswith("nothing was changed")


def test_shared_parts_are_compared_once() -> None:
    """Aliases of aliases stand for more values than there are atoms."""
    text = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    assert set_value(text, ("k",), 7) == text + "k: 7\n"
