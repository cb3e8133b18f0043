"""The calls of one forward in order, told apart: layer 3 of a loop is another module than layer 2.

A loop calls its layers at one line, so their stacks are alike. A layer begins anew when the stack that began it comes
again after others did; where several calls on the stack began with it, the innermost that the last row was in has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .calls import Call, Chain, class_at

UNREAD = "?"  # before the file's name, where a class cannot be read


@dataclass(slots=True)
class Node:
    """One call of one module, with the rows made in it (those of its children not among them)."""

    path: str
    call: Call | None
    line: int = 0  # in its forward, of its first row
    first_stack: int = -1
    rows: list[int] = field(default_factory=list)
    children: list["Node"] = field(default_factory=list)

    def all_rows(self) -> list[int]:
        found = list(self.rows)
        for child in self.children:
            found += child.all_rows()
        return found


def tree_of(
    rows: Iterable[tuple[int, int]], chains: Mapping[int, Chain], names: "Names"
) -> tuple[Node, dict[int, str]]:
    """The calls of one forward, under a root that stands for the script, and the path of each row made in a module.

    `rows`: (row, stack) in the order of their birth.
    """
    paths: dict[int, str] = {}
    root = Node("", None)
    current: list[Node] = []
    last_stack = -1
    for row, stack in rows:
        chain = chains[stack]
        if not chain.calls:
            current = []
            last_stack = stack
            continue
        keep = _kept(current, chain, stack, last_stack)
        del current[keep:]
        for depth in range(keep, len(chain.calls)):
            parent = current[-1] if current else root
            call = chain.calls[depth]
            index = sum(child.call == call for child in parent.children)
            node = Node(names.path(parent.path, call, chain.lines[depth], index), call, chain.lines[depth], stack)
            parent.children.append(node)
            current.append(node)
        current[-1].rows.append(row)
        paths[row] = current[-1].path
        last_stack = stack
    return root, paths


def _kept(current: list[Node], chain: Chain, stack: int, last_stack: int) -> int:
    """How many of the calls that the last row was in go on."""
    common = 0
    while common < min(len(current), len(chain.calls)) and current[common].call == chain.calls[common]:
        common += 1
    if stack == last_stack:
        return common
    for depth in range(common - 1, -1, -1):
        node = current[depth]
        if node.first_stack == stack and not chain.calls[depth].is_container:
            return depth
    return common


class Names:
    """Paths for calls, the same for the same place in every forward: class or file, line of the call, number."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, Call], str] = {}
        self._taken: set[str] = set()
        self.class_of: dict[str, str] = {}

    def path(self, parent: str, call: Call, line: int, index: int) -> str:
        found = class_at(call.filename, line, call.function)
        label = found or call.filename.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
        key = (parent, call)
        if key not in self._given:
            at = call.site[-1].line if call.site else 0
            name = f"{label.replace('.', '_')}@{at}"
            while f"{parent}.{name}" in self._taken:
                name += "'"
            self._taken.add(f"{parent}.{name}")
            self._given[key] = name
        path = f"{parent}.{self._given[key]}[{index}]" if parent else f"{self._given[key]}[{index}]"
        self.class_of[path] = found or f"{UNREAD}{label}"
        return path
