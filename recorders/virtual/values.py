"""What the host hears when it reads a GPU tensor: the true value where it can be known, else a fixed policy, counted.

Nothing is computed on the virtual GPU, but small tensors that came from the host (lengths, masks, counters, the loss
scale) keep their values: each small storage may have a shadow on the CPU, and an operation whose operands all have one
is run on the shadows too. Any other value is unknown. Read by the host, it is False, 1 or 1.0 (and True for `all`,
`isfinite` and `equal`): a loop goes on, a division works, and GradScaler finds no infinity. Counts of unknown inputs
(`bincount`, `histc`) are spread evenly and sum to the number of inputs, so that a script can split by them. Each such
read is noted with the script's line, because what the script does next may differ on a real GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .private import raw_is_meta, raw_storage
from .scratch import Args, Arguments, Kwargs
from .storages import RECORDS, Kind, StorageRecord
from .unsupported import users_line

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Tracker

LIMIT = 4096  # elements of a tensor that keeps its values
LIMIT_BYTES = 8 * LIMIT
_aten = torch.ops.aten

_ASSUMED_TRUE = frozenset(
    (_aten.all.default, _aten.all.dim, _aten.all.dims, _aten.isfinite.default, _aten._is_all_true.default)
)
_CONSTANT = {
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.new_zeros.default: 0,
    _aten.new_ones.default: 1,
    _aten.zero_.default: 0,
}
_ABSORBED = {  # one operand decides the result, whatever the other holds: how generate() comes to its end
    _aten.bitwise_and.Tensor: 0,
    _aten.bitwise_and_.Tensor: 0,
    _aten.logical_and.default: 0,
    _aten.bitwise_or.Tensor: 1,
    _aten.bitwise_or_.Tensor: 1,
    _aten.logical_or.default: 1,
}
_COUNTS = frozenset((_aten.bincount.default, _aten.histc.default))  # of how many inputs fall into each bin
_KEEPS = frozenset((_aten._amp_foreach_non_finite_check_and_unscale_.default,))  # found_inf stays what it was: 0


class _Unknown(Exception):  # noqa: N818  # a signal, not an error
    """An operand has no shadow."""


class _Facts:
    """What of an operation's schema matters here."""

    __slots__ = ("opaque", "written")

    def __init__(self, func: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.opaque = seeded or name.startswith(("empty", "new_empty", "resize", "_fused_", "_foreach_copy"))
        self.written = [
            (i, argument.name)
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]


class Values:
    """The shadows of one session, and the policy for everything else."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._facts: dict[Any, _Facts] = {}

    def after(self, func: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Called once per operation on the GPU: carry shadows from operands to results."""
        if isinstance(result, torch.Tensor):
            if result.layout is not torch.strided:
                return
            record = RECORDS.get(raw_storage(result)._cdata)
            if record is None or record.nbytes > LIMIT_BYTES:
                return
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = _Facts(func)
        known = None if facts.opaque else _compute(func, args, kwargs)
        if known is None and func in _COUNTS:
            self._spread(func, args, kwargs, result)
        elif known is None:
            _settle(func, args, kwargs, result, facts)
        elif not facts.written:
            _keep(result, *known)

    def read_back(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor with the values of a virtual one."""
        known = shadow(tensor)
        record = RECORDS.get(raw_storage(tensor)._cdata)
        if known is not None and record is not None and not record.assumed:
            return known.clone()
        kind = "bool" if tensor.dtype is torch.bool else "float" if tensor.is_floating_point() else "integer"
        article = "an" if kind == "integer" else "a"
        answer = known if known is not None else torch.full(tensor.shape, kind != "bool", dtype=tensor.dtype)
        file, line = users_line()
        self._session.note(f"{article} {kind} value was read from the GPU at {file}:{line}: answered {_said(answer)}")
        self._session.assumed_at(file, line)
        return answer.clone()

    def _spread(self, func: Any, args: Args, kwargs: Kwargs, result: torch.Tensor) -> None:
        """Counts of inputs that nobody computed: as even as can be, and their sum is the number of inputs."""
        arguments = Arguments(func, args, kwargs)
        bins = result.numel()
        if arguments.get("weights") is not None or not bins:
            return
        each, more = divmod(arguments.get("self").numel(), bins)
        counts = torch.full((bins,), each, dtype=result.dtype)
        counts[:more] += 1
        _keep(result, counts, True)
        file, line = users_line()
        name = func.name().removeprefix("aten::")
        self._session.note(f"the counts of {name} at {file}:{line} depend on values: spread evenly over the bins")


def _said(answer: torch.Tensor) -> str:
    """The value that an answer consists of; its range where there are several."""
    if not answer.numel() or answer.is_complex():
        return f"{answer.numel()} assumed values"
    low, high = answer.min().item(), answer.max().item()
    return str(low) if low == high else f"{low} to {high}"


def _settle(func: Any, args: Args, kwargs: Kwargs, result: Any, facts: _Facts) -> None:
    """An operand is unknown: what the result is all the same, and which shadows are no longer true."""
    if func in _KEEPS:
        return
    for place, name in facts.written:
        written = args[place] if place < len(args) else kwargs.get(name)
        for tensor in _tensors((written,)):
            _drop(tensor)
    if not isinstance(result, torch.Tensor):
        return
    if func in _ASSUMED_TRUE:
        _keep(result, torch.ones(result.shape, dtype=result.dtype), True)
    elif func in _CONSTANT or func is _aten.fill_.Scalar:
        value = args[1] if func is _aten.fill_.Scalar else _CONSTANT[func]
        _keep(result, torch.full(result.shape, value, dtype=result.dtype), False)
    elif func in _ABSORBED:
        _absorb(func, args, result)
    elif func is _aten.copy_.default:
        source = _compute(_aten._to_copy.default, (args[1],), {"dtype": result.dtype})
        if source is not None:
            _keep(result, source[0].expand(result.shape), source[1])


def _absorb(func: Any, args: Args, result: torch.Tensor) -> None:
    """False `and` unknown is False, True `or` unknown is True; of integers only 0 is such a value."""
    value = _ABSORBED[func]
    for operand in args:
        if not isinstance(operand, torch.Tensor) or (value and operand.dtype is not torch.bool):
            continue
        known = _compute(_aten.eq.Scalar, (operand, value), {})
        if known is not None and bool(known[0].all()):
            _keep(result, torch.full(result.shape, value, dtype=result.dtype), known[1])
            return


def shadow(tensor: torch.Tensor) -> torch.Tensor | None:
    """The CPU tensor that shares shape and strides with `tensor` and holds its values, None when they are unknown."""
    record = RECORDS.get(raw_storage(tensor)._cdata) if tensor.layout is torch.strided else None
    if record is None or record.values is None:
        return None
    if record.values.nbytes() != record.nbytes:
        record.values = None  # resized
        return None
    return _over(record.values, tensor)


def _over(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    empty: Any = torch.empty(0, dtype=tensor.dtype)
    laid_out: torch.Tensor = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return laid_out


def _compute(func: Any, args: Args, kwargs: Kwargs) -> tuple[Any, bool] | None:
    """The operation on the shadows, and whether any was assumed; None when the CPU cannot know or do it."""
    assumed: list[bool] = []
    try:
        shadows = [_shadowed(a, assumed) for a in args]
        keywords = {name: _shadowed(value, assumed) for name, value in kwargs.items() if name != "pin_memory"}
    except _Unknown:
        return None
    if "device" in keywords:
        keywords["device"] = torch.device("cpu")
    try:
        return func(*shadows, **keywords), any(assumed)
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
        return None


def _shadowed(value: Any, assumed: list[bool]) -> Any:
    if isinstance(value, torch.Tensor):
        if not raw_is_meta(value):
            if value.numel() > LIMIT:
                raise _Unknown
            return value
        known = shadow(value)
        if known is None:
            raise _Unknown
        assumed.append(RECORDS[raw_storage(value)._cdata].assumed)
        return known
    if isinstance(value, (list, tuple)):
        return [_shadowed(each, assumed) for each in value]
    return value


def _keep(result: Any, known: Any, assumed: bool) -> None:
    """Give the outputs their shadows."""
    if isinstance(result, torch.Tensor):
        if not (isinstance(known, torch.Tensor) and raw_is_meta(result) and known.shape == result.shape):
            return
        record = RECORDS.get(raw_storage(result)._cdata)
        if record is None or record.kind is not Kind.CUDA or not 0 < record.nbytes <= LIMIT_BYTES:
            return
        if record.values is None:
            if not _covers(result, record):
                return
            record.values = torch.UntypedStorage(record.nbytes)  # type: ignore[no-untyped-call]
        record.assumed = assumed
        _over(record.values, result).copy_(known)
    elif isinstance(result, (list, tuple)) and isinstance(known, (list, tuple)):
        for each, value in zip(result, known, strict=False):
            _keep(each, value, assumed)


def _covers(tensor: torch.Tensor, record: StorageRecord) -> bool:
    return tensor.numel() * tensor.element_size() == record.nbytes


def _drop(tensor: torch.Tensor) -> None:
    record = RECORDS.get(raw_storage(tensor)._cdata) if raw_is_meta(tensor) else None
    if record is not None:
        record.values = None


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def equal(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.equal`: the truth where both are known, else True for equal shapes."""
    known = _compute(func, args, kwargs)
    answer = args[0].shape == args[1].shape if known is None else bool(known[0])
    tracker.call(func, args, kwargs, run=lambda *_: answer)
    return answer


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """Shadows follow every operation; the host's reads are answered by `Values.read_back`."""
    values, tracker = Values(session), session.tracker
    kept = tracker.after, tracker.read_back
    tracker.after, tracker.read_back = values.after, values.read_back
    tracker.handlers[_aten.equal.default] = equal
    try:
        yield
    finally:
        tracker.after, tracker.read_back = kept
        tracker.handlers.pop(_aten.equal.default, None)
