"""Remedies that are a change of code: the user's own file with that change, every other byte as it is (libcst).

The lines come from a diagnosis: where a graph is made, a model is called, a file is loaded, a module is moved. What
is made of them is a proposal to be read, never more: whether a stored loss is needed with its graph is the author's to
know.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .interface import NotApplicable

if TYPE_CHECKING:
    import libcst as cst

STORES = frozenset({"append", "extend", "add", "appendleft", "insert", "put", "update"})
LETS_GO = frozenset({"detach", "item", "tolist", "numpy", "detach_"})


class _File:
    """A parsed file with the lines of its nodes."""

    def __init__(self, text: str) -> None:
        import libcst as cst
        from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

        self.wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module = self.wrapper.module
        self.lines = self.wrapper.resolve(PositionProvider)
        self.parents = self.wrapper.resolve(ParentNodeProvider)

    def covers(self, node: "cst.CSTNode", line: int) -> bool:
        span = self.lines[node]
        return bool(span.start.line <= line <= span.end.line)

    def around(self, line: int, kinds: tuple[type, ...]) -> "list[cst.CSTNode]":
        """The nodes of these kinds that a line is part of, innermost first."""
        found = [node for node in self.lines if isinstance(node, kinds) and self.covers(node, line)]
        return sorted(found, key=lambda node: self.lines[node].start.line, reverse=True)

    def statement(self, line: int) -> "cst.SimpleStatementLine | None":
        import libcst as cst

        found = self.around(line, (cst.SimpleStatementLine,))
        return cast("cst.SimpleStatementLine", found[0]) if found else None

    def torch(self) -> str | None:
        """The name under which the file knows torch."""
        import libcst as cst

        for node in self.lines:
            if isinstance(node, cst.ImportAlias) and self.text_of(node.name) == "torch":
                return self.text_of(node.asname.name) if node.asname else "torch"
        return None

    def text_of(self, node: "cst.CSTNode") -> str:
        return self.module.code_for_node(node)

    def with_replaced(self, pairs: "Sequence[tuple[cst.CSTNode, Any]]") -> str:
        import libcst as cst

        wanted = {id(old): new for old, new in pairs}

        class Replaced(cst.CSTTransformer):
            def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
                return wanted.get(id(original_node), updated_node)

        return str(cast(Any, self.module.visit(Replaced())).code)

    def names(self, node: "cst.CSTNode") -> set[str]:
        import libcst as cst
        import libcst.matchers as m

        return {name.value for name in m.findall(node, m.Name()) if isinstance(name, cst.Name)}

    def calls_backward(self, node: "cst.CSTNode") -> bool:
        import libcst.matchers as m

        return bool(m.findall(node, m.Call(func=m.Attribute(attr=m.Name("backward")))))


def change(remedy: str, text: str, line: int) -> str | NotApplicable:
    """The text of a Python file with the remedy at `line` (counted from 1), or why it cannot be written there."""
    import libcst as cst

    if remedy not in CHANGES:
        return NotApplicable(remedy, "oomdoc writes no change of code for it")
    try:
        file = _File(text)
    except cst.ParserSyntaxError as error:
        return NotApplicable(remedy, f"the file is not Python that can be read (line {error.raw_line})")
    made = CHANGES[remedy](file, line)
    return NotApplicable(remedy, made[1:]) if made.startswith("\0") else made


def _cannot(reason: str) -> str:
    return "\0" + reason


# --- detach ---


def _detach(file: _File, line: int) -> str:
    """`.detach()` where the block that makes the graph stores what it made."""
    import libcst as cst

    start = file.statement(line)
    if start is None:
        return _cannot("no statement stands there")
    block = file.parents[start]
    made = _assigned(start)
    scope = next(iter(file.around(line, (cst.FunctionDef,))), file.module)
    pairs: list[tuple[cst.CSTNode, Any]] = []
    for statement in getattr(block, "body", ()):
        if isinstance(statement, cst.SimpleStatementLine) and file.lines[statement].start.line >= line:
            pairs += _stored(file, statement, made, statement is start, scope)
    if not pairs:
        names = ", ".join(sorted(made)) or "what it makes"
        return _cannot(f"no statement of that block stores {names}: look for who keeps it")
    return file.with_replaced(pairs)


def _assigned(statement: "cst.SimpleStatementLine") -> set[str]:
    import libcst as cst

    found: set[str] = set()
    for part in statement.body:
        if isinstance(part, cst.Assign):
            found |= {t.target.value for t in part.targets if isinstance(t.target, cst.Name)}
    return found


def _stored(
    file: _File, statement: "cst.SimpleStatementLine", made: set[str], own: bool, scope: "cst.CSTNode"
) -> "list[tuple[cst.CSTNode, Any]]":
    """The expressions that this statement stores, with their detached forms; `own`: it makes the graph itself."""
    import libcst as cst

    pairs: list[tuple[cst.CSTNode, Any]] = []
    for part in statement.body:
        if isinstance(part, cst.AugAssign) and not _propagated(file, part.target, scope):
            pairs += _detached(part.value, made, own)
        elif isinstance(part, cst.Assign):
            target = part.targets[0].target
            again = isinstance(target, cst.Name) and target.value in file.names(part.value)
            kept = isinstance(target, (cst.Attribute, cst.Subscript))
            if (again or kept) and not _propagated(file, target, scope):
                pairs += _detached(part.value, made - file.names(target), own and kept)
        elif isinstance(part, cst.Expr) and isinstance(part.value, cst.Call):
            function = part.value.func
            if isinstance(function, cst.Attribute) and function.attr.value in STORES:
                for argument in part.value.args:
                    pairs += _detached(argument.value, made, own)
    return pairs


def _propagated(file: _File, target: "cst.CSTNode", scope: "cst.CSTNode") -> bool:
    """Whether the same name is back-propagated: then the graph is wanted."""
    import libcst as cst
    import libcst.matchers as m

    text = file.text_of(target)
    calls = m.findall(scope, m.Call(func=m.Attribute(attr=m.Name("backward"))))
    return any(isinstance(c, cst.Call) and text in file.text_of(c.func) for c in calls)


def _detached(value: "cst.BaseExpression", made: set[str], own: bool) -> "list[tuple[cst.CSTNode, Any]]":
    import libcst as cst

    if isinstance(value, cst.Name):
        return [(value, _method(value, "detach"))] if value.value in made else []
    if isinstance(value, cst.Call):
        function = value.func
        free = isinstance(function, cst.Attribute) and function.attr.value in LETS_GO
        return [(value, _method(value, "detach"))] if own and not free else []
    if isinstance(value, cst.BinaryOperation):
        return _detached(value.left, made, own) + _detached(value.right, made, own)
    if isinstance(value, (cst.List, cst.Tuple)):
        return [pair for each in value.elements for pair in _detached(each.value, made, own)]
    if isinstance(value, cst.Dict):
        return [pair for each in value.elements for pair in _detached(each.value, made, own)]
    return []


def _method(value: "cst.BaseExpression", name: str) -> "cst.Call":
    import libcst as cst

    return cst.Call(func=cst.Attribute(value=value, attr=cst.Name(name)))


# --- no_grad ---


def _no_grad(file: _File, line: int) -> str:
    """The function that evaluates under `torch.no_grad()`; where it trains too, the loop or the statement."""
    import libcst as cst

    torch = file.torch()
    if torch is None:
        return _cannot("the file does not import torch by its name")
    functions = cast("list[cst.FunctionDef]", file.around(line, (cst.FunctionDef,)))
    if functions and functions[0].name.value == "forward":
        return _cannot("it is the model's forward, which training calls too: wrap the place that calls the model")
    guard = cst.parse_expression(f"{torch}.no_grad()")
    if functions and not file.calls_backward(functions[0]):
        decorator = cst.Decorator(decorator=guard)
        return file.with_replaced([(functions[0], _decorated(functions[0], decorator))])
    outer = [node for node in file.around(line, (cst.For, cst.While)) if not file.calls_backward(node)]
    statement = cast(Any, outer[-1] if outer else file.statement(line))
    if statement is None:
        return _cannot("no statement stands there")
    lead = statement.leading_lines
    inside = cst.IndentedBlock(body=[statement.with_changes(leading_lines=())])
    wrapped = cst.With(items=[cst.WithItem(item=guard)], body=inside, leading_lines=lead)
    return file.with_replaced([(statement, wrapped)])


def _decorated(function: "cst.FunctionDef", decorator: "cst.Decorator") -> "cst.FunctionDef":
    return function.with_changes(decorators=[*function.decorators, decorator])


# --- load on the host, move when used ---


def _load_to_host(file: _File, line: int) -> str:
    import libcst as cst
    import libcst.matchers as m

    torch = file.torch()
    for call in (node for node in file.around(line, (cst.Call,))):
        wanted = isinstance(call, cst.Call) and torch is not None and file.text_of(call.func) == f"{torch}.load"
        if not wanted or not isinstance(call, cst.Call):
            continue
        if any(m.matches(argument, m.Arg(keyword=m.Name("map_location"))) for argument in call.args):
            return _cannot("its map_location is given already: make it 'cpu'")
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        new = cst.Arg(keyword=cst.Name("map_location"), value=cst.SimpleString('"cpu"'), equal=equal)
        last = call.args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        return file.with_replaced([(call, call.with_changes(args=[*call.args[:-1], last, new]))])
    return _cannot("no torch.load stands there")


def _move_when_used(file: _File, line: int) -> str:
    """The move to the card goes in front of the first statement of the block that uses the module."""
    import libcst as cst

    start = file.statement(line)
    part = start.body[0] if start is not None and len(start.body) == 1 else None
    value = getattr(part, "value", None)
    moves = isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _MOVES
    if start is None or not moves or not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return _cannot("no statement there moves a module with .to() or .cuda()")
    target = part.targets[0].target if isinstance(part, cst.Assign) else value.func.value
    if not isinstance(target, cst.Name):
        return _cannot("what it moves has no name of its own")
    block = cast(Any, file.parents[start])
    statements = list(block.body)
    at = statements.index(start)
    first = next((i for i in range(at + 1, len(statements)) if target.value in file.names(statements[i])), None)
    if first is None or first == at + 1:
        return _cannot(f"{target.value} is used at once, or not in that block: move it where it is used")
    move = f"{target.value}.{value.func.attr.value}({''.join(map(file.text_of, value.args))})"
    moved = cst.parse_statement(f"{target.value} = {move}")
    stays = part.with_changes(value=value.func.value) if isinstance(part, cst.Assign) else None
    kept = [start.with_changes(body=[stays])] if stays is not None else []
    new = [*statements[:at], *kept, *statements[at + 1 : first], moved, *statements[first:]]
    if block is file.module:
        return str(file.module.with_changes(body=new).code)
    return file.with_replaced([(block, block.with_changes(body=new))])


_MOVES = frozenset({"to", "cuda"})
CHANGES: dict[str, Callable[[_File, int], str]] = {
    "detach-retained-graph": _detach,
    "no-grad-evaluation": _no_grad,
    "map-location": _load_to_host,
    "move-when-used": _move_when_used,
}
