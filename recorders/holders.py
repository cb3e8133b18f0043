"""Who keeps tensors on the GPU that no module and no optimizer owns: variables, attributes, lists, closures.

Read from the interpreter's own garbage collector, once, when a recording ends. A block alone does not say it.
"""

import gc
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CellType, FrameType, FunctionType, TracebackType
from typing import Any

import torch

from .hooks import is_made, tensors_in

MOST = 8  # holders that are named
MIN_BYTES = 1 << 16  # below it a tensor without a graph is no reason for anything
MAX_NODES = 20_000  # of a graph that is counted
MAX_DEPTH = 4  # containers in containers
_HERE = str(Path(__file__).parent)
_ROWS = (list, tuple, set, frozenset, deque)


def holders() -> list[dict[str, Any]]:
    """`{"holder": "list `losses`, global of train.py", "tensors": 12, "bytes": ..., "graph_nodes": ...}` and so on.

    `graph_nodes`: of the largest autograd graph that one of these tensors keeps (counted to 20,000), 0 without any.
    """
    try:
        return _holders()
    except Exception:  # the objects are the user's: what looking at one raises must not cost the recording
        return []


def _holders() -> list[dict[str, Any]]:
    everything = gc.get_objects()
    tensors = _unowned(everything)
    if not tensors:
        return []
    ignored = {id(everything), id(tensors)}
    by_container: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
    containers: dict[int, Any] = {}
    mine = {id(tensor): tensor for tensor in tensors}
    for container in gc.get_referrers(*tensors):
        if id(container) in ignored or container is mine or _is_ours(container):
            continue
        found = [mine[id(value)] for value in _values(container) if id(value) in mine]
        if found:
            containers[id(container)] = container
            by_container[id(container)] += found
    rows = [
        {"tensors": len(held), "bytes": sum(map(_bytes, held)), "graph_nodes": max(map(_nodes, held)), "container": key}
        for key, held in by_container.items()
    ]
    rows.sort(key=lambda row: (-row["graph_nodes"], -row["bytes"]))
    most = rows[:MOST] + [row for row in sorted(rows, key=lambda row: -row["bytes"])[:MOST] if row not in rows[:MOST]]
    ignored |= {id(containers), id(by_container), id(rows), id(most), id(mine)}
    told: dict[str, dict[str, Any]] = {}
    for row in most:
        key = row.pop("container")
        name = _name_of(containers[key], by_container[key], ignored)
        if name is None:
            continue
        known = told.setdefault(name, {"holder": name, "tensors": 0, "bytes": 0, "graph_nodes": 0})
        for number in ("tensors", "bytes"):
            known[number] = known[number] + row[number]
        known["graph_nodes"] = max(known["graph_nodes"], row["graph_nodes"])
    return list(told.values())


def _unowned(everything: Iterable[Any]) -> list[torch.Tensor]:
    owned: set[int] = set()
    found = []
    for each in everything:
        kind = type(each)
        if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)) and not is_made(each):
            continue
        if issubclass(kind, torch.nn.Module):
            for tensor in (*each.parameters(recurse=False), *each.buffers(recurse=False)):
                owned |= {id(tensor), id(getattr(tensor, "grad", None)) if tensor.is_leaf else 0}
        elif issubclass(kind, torch.optim.Optimizer):
            owned |= {id(tensor) for tensor in tensors_in(each.state)}
            owned |= {id(tensor) for group in each.param_groups for tensor in group["params"]}
        elif issubclass(kind, torch.Tensor):
            found.append(each)
    return [
        tensor
        for tensor in found
        if id(tensor) not in owned and tensor.is_cuda and (_node(tensor) is not None or _bytes(tensor) >= MIN_BYTES)
    ]


def _node(tensor: torch.Tensor) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:  # one of several views whose base was written: torch refuses to rebuild its node
        return None


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _nodes(tensor: torch.Tensor) -> int:
    """Nodes of the tensor's graph, which hold what its backward would need."""
    node = _node(tensor)
    waiting = [] if node is None else [node]
    seen = set(waiting)
    while waiting and len(seen) < MAX_NODES:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen)


def _is_ours(container: Any) -> bool:
    return isinstance(container, FrameType) and container.f_code.co_filename.startswith(_HERE)


def _values(container: Any) -> Iterable[Any]:
    if isinstance(container, FrameType):
        return list(container.f_locals.values())
    if isinstance(container, Mapping):
        return list(container.values())
    if isinstance(container, CellType):
        return [container.cell_contents]
    if isinstance(container, _ROWS):
        return list(container)
    return list(getattr(container, "__dict__", {}).values())


def _name_of(container: Any, held: list[torch.Tensor], ignored: set[int]) -> str | None:
    if isinstance(container, _ROWS):
        where = _where(container, ignored, MAX_DEPTH)
        return f"{type(container).__name__} {where}" if where else None
    return _entry(container, max(held, key=lambda tensor: (_nodes(tensor), _bytes(tensor))), ignored, MAX_DEPTH)


def _where(value: Any, ignored: set[int], depth: int) -> str | None:
    """The variable, attribute or closure that `value` is in; None where the search ends first."""
    if depth == 0:
        return None
    for container in gc.get_referrers(value):
        if id(container) in ignored or _is_ours(container):
            continue
        found = _entry(container, value, ignored, depth)
        if found is not None:
            return found
    return None


def _entry(container: Any, value: Any, ignored: set[int], depth: int) -> str | None:
    if isinstance(container, FrameType):
        return _of_frame(container, value)
    if isinstance(container, CellType):
        return _of_cell(container, ignored)
    if isinstance(container, Mapping):
        return _of_mapping(container, value, ignored, depth)
    if isinstance(container, (list, tuple, deque)):
        where = _where(container, ignored | {id(container)}, depth - 1)
        return f"in {type(container).__name__} {where}" if where else None
    names = [name for name, held in getattr(container, "__dict__", {}).items() if held is value]
    return f"`{names[0]}`, attribute of {type(container).__name__}" if names else None


def _of_frame(frame: FrameType, value: Any) -> str | None:
    name = next((name for name, held in frame.f_locals.items() if held is value), None)
    if name is None:
        return None
    file, function = Path(frame.f_code.co_filename).name, frame.f_code.co_name
    if function == "<module>":
        return f"`{name}`, global of {file}"
    kept = not _runs(frame) and any(isinstance(each, TracebackType) for each in gc.get_referrers(frame))
    why = ", which the traceback of an exception keeps" if kept else ""
    return f"`{name}`, local of {function}() in {file}{why}"


def _runs(frame: FrameType) -> bool:
    """Is being executed, or was until the exception that is handled right now."""
    failed = sys.exc_info()[2]
    while failed is not None:
        if failed.tb_frame is frame:
            return True
        failed = failed.tb_next
    for running in sys._current_frames().values():
        below: FrameType | None = running
        while below is not None:
            if below is frame:
                return True
            below = below.f_back
    return False


def _of_cell(cell: CellType, ignored: set[int]) -> str | None:
    for closure in gc.get_referrers(cell):
        if not isinstance(closure, tuple):
            continue
        at = next((index for index, each in enumerate(closure) if each is cell), 0)
        for function in gc.get_referrers(closure):
            if isinstance(function, FunctionType) and function.__closure__ is closure:
                return f"`{function.__code__.co_freevars[at]}`, closure of {function.__qualname__}()"
    return None


def _of_mapping(mapping: Mapping[Any, Any], value: Any, ignored: set[int], depth: int) -> str | None:
    name = next((name for name, held in list(mapping.items()) if held is value), None)
    if name is None:
        return None
    if "__builtins__" in mapping or "__spec__" in mapping:
        return f"`{name}`, global of {Path(str(mapping.get('__file__', mapping.get('__name__')))).name}"
    for owner in gc.get_referrers(mapping):
        if getattr(owner, "__dict__", None) is mapping:
            return f"`{name}`, attribute of {type(owner).__name__}"
    where = _where(mapping, ignored | {id(mapping)}, depth - 1)
    return f"dict {where}" if where else None
