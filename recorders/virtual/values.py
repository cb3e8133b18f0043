"""What the host hears when it reads a GPU tensor: the true value where it can be known, else a fixed policy, counted.

Nothing is computed on the virtual GPU, but small tensors that came from the host (lengths, masks, counters, the loss
scale) keep their values (shadows.py), and a router's choices are spread evenly (spread.py). Any other value is unknown.
Read by the host, it is False, 1 or 1.0 (and True for `all`, `isfinite` and `equal`): a loop goes on, a division works,
and GradScaler finds no infinity. A small unknown mask is that already before it is read, so that its inverse, and what
is written under it, agree with what the host hears. Counts of unknown inputs (`bincount`, `histc`) sum to the number of
inputs. Each such read is noted with the script's line: what the script does next may differ on a real GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .private import raw_storage
from .scratch import Args, Arguments, Kwargs
from .shadows import (
    ALL_OF,
    KNOWN,
    LIMIT,
    LIMIT_BYTES,
    POLICY,
    SPREAD,
    SPREAD_LIMIT_BYTES,
    compute,
    covers,
    drop,
    keep,
    own,
    promise,
    shadow,
    tensors,
)
from .spread import SOURCES, spread
from .storages import RECORDS, StorageRecord
from .unsupported import users_line

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Tracker

_aten = torch.ops.aten

_ASSUMED_TRUE = ALL_OF | {_aten.isfinite.default}
_FILLS: dict[Any, int | None] = {  # with what; None = with an argument
    _aten.zeros.default: 0,
    _aten.ones.default: 1,
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.new_zeros.default: 0,
    _aten.new_ones.default: 1,
    _aten.zero_.default: 0,
    _aten.fill_.Scalar: None,
    _aten.full.default: None,
    _aten.full_like.default: None,
    _aten.new_full.default: None,
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


class _Facts:
    """What of an operation's schema matters here."""

    __slots__ = ("func", "opaque", "written")

    def __init__(self, func: Any) -> None:
        self.func = func
        name = func._schema.name.removeprefix("aten::")
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.opaque = seeded or name.startswith(("empty", "new_empty", "resize", "_fused_", "_foreach_copy"))
        self.written = [
            (i, argument.name)
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    def written_of(self, args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
        return tensors(args[place] if place < len(args) else kwargs.get(name) for place, name in self.written)


class Values:
    """The shadows of one session, and the policy for everything else."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._facts: dict[int, _Facts] = {}  # by identity
        self._spreads = False  # whether there ever were spread indices: only these have big shadows

    def after(self, func: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Called once per operation on the GPU: carry shadows from operands to results."""
        if isinstance(result, torch.Tensor):
            if result.layout is not torch.strided:
                return
            record = RECORDS.get(raw_storage(result)._cdata)
            if record is None or (record.nbytes > LIMIT_BYTES and not self._big(func, args, result, record)):
                return
            if record.nbytes > LIMIT_BYTES and func in _FILLS and covers(result, record):
                _fill(func, args, kwargs, result)
                return
        facts = self._facts.get(id(func))
        if facts is None:
            facts = self._facts[id(func)] = _Facts(func)
        if self._spreads and self._promised(facts, func, args, kwargs, result):
            return
        known = None if facts.opaque else compute(func, args, kwargs, result)
        if known is None and func in _COUNTS:
            self._count(func, args, kwargs, result)
        elif known is None:
            self._settle(func, args, kwargs, result, facts)
        else:
            if facts.written:
                _level(facts.written_of(args, kwargs), known[1])
            else:
                keep(result, *known)
            if known[1] == POLICY and func in _ABSORBED:
                _absorb(func, args, result)

    def _promised(self, facts: _Facts, func: Any, args: Args, kwargs: Kwargs, result: Any) -> bool:
        """Whether what a big result follows from is kept for its values; else what is written to is made ready."""
        written = list(facts.written_of(args, kwargs)) if facts.written else []
        if isinstance(result, torch.Tensor) and not facts.opaque and promise(func, args, kwargs, result, written):
            return True
        for tensor in written:
            own(tensor)
        return False

    def _big(self, func: Any, args: Args, result: torch.Tensor, record: StorageRecord) -> bool:
        """Whether anything is known, or to be known, of a big result: integers that follow from spread indices."""
        if result.is_floating_point() or record.nbytes > SPREAD_LIMIT_BYTES:
            record.values = record.constant = None
            return False
        if func in _FILLS or func in SOURCES or record.values is not None or record.constant is not None:
            return True
        if not covers(result, record):
            return False  # a part of what is unknown was written
        return self._spreads and any(
            (held := RECORDS.get(raw_storage(each)._cdata)) is not None and held.values is not None
            for each in tensors(args)
        )

    def read_back(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor with the values of a virtual one."""
        known = shadow(tensor)
        record = RECORDS.get(raw_storage(tensor)._cdata)
        if known is not None and record is not None and record.assumed == KNOWN:
            return known.clone()
        kind = "bool" if tensor.dtype is torch.bool else "float" if tensor.is_floating_point() else "integer"
        article = "an" if kind == "integer" else "a"
        answer = known if known is not None else torch.full(tensor.shape, kind != "bool", dtype=tensor.dtype)
        file, line = users_line()
        how = ", spread evenly" if known is not None and record is not None and record.assumed == SPREAD else ""
        said = f"answered {_said(answer)}{how}"
        self._session.note(f"{article} {kind} value was read from the GPU at {file}:{line}: {said}")
        self._session.assumed_at(file, line)
        return answer.clone()

    def _settle(self, func: Any, args: Args, kwargs: Kwargs, result: Any, facts: _Facts) -> None:
        """An operand is unknown: what the result is all the same, and which shadows are no longer true."""
        if func in _KEEPS:
            return
        for tensor in facts.written_of(args, kwargs):
            drop(tensor)
        guess = spread(func, args, kwargs, result)
        if guess is not None:
            self._spreads = True
            keep(result, guess, SPREAD)
        elif isinstance(result, torch.Tensor):
            _settle_one(func, args, kwargs, result, facts)

    def _count(self, func: Any, args: Args, kwargs: Kwargs, result: torch.Tensor) -> None:
        """Counts of inputs that nobody computed: as even as can be, and their sum is the number of inputs."""
        arguments = Arguments(func, args, kwargs)
        bins = result.numel()
        if arguments.get("weights") is not None or not bins:
            return
        each, more = divmod(arguments.get("self").numel(), bins)
        counts = torch.full((bins,), each, dtype=result.dtype)
        counts[:more] += 1
        keep(result, counts, SPREAD)
        file, line = users_line()
        name = func.name().removeprefix("aten::")
        self._session.note(f"the counts of {name} at {file}:{line} depend on values: spread evenly over the bins")


def _said(answer: torch.Tensor) -> str:
    """The value that an answer consists of; its range where there are several."""
    if not answer.numel() or answer.is_complex():
        return f"{answer.numel()} assumed values"
    low, high = answer.min().item(), answer.max().item()
    return str(low) if low == high else f"{low} to {high}"


def _settle_one(func: Any, args: Args, kwargs: Kwargs, result: torch.Tensor, facts: _Facts) -> None:
    if func in _FILLS:
        _fill(func, args, kwargs, result)
        return
    if func in _ABSORBED:
        _absorb(func, args, result)
    elif func is _aten.copy_.default:
        if promise(_aten._to_copy.default, (args[1],), {"dtype": result.dtype}, result, []):
            return
        source = compute(_aten._to_copy.default, (args[1],), {"dtype": result.dtype})
        if source is not None:
            keep(result, source[0].expand(result.shape), source[1])
    elif result.dtype is torch.bool and not facts.opaque and result.numel() <= LIMIT:
        known = shadow(result)
        if known is None:
            keep(result, torch.full(result.shape, func in _ASSUMED_TRUE), POLICY)


def _fill(func: Any, args: Args, kwargs: Kwargs, result: torch.Tensor) -> None:
    """All elements are one number; of a big tensor the number alone is kept."""
    value = _FILLS[func]
    if value is None:
        arguments = Arguments(func, args, kwargs)
        value = arguments.get("value", arguments.get("fill_value"))
    record = RECORDS.get(raw_storage(result)._cdata)
    if record is None or isinstance(value, torch.Tensor):
        return
    if record.nbytes <= LIMIT_BYTES:
        keep(result, torch.full(result.shape, value, dtype=result.dtype), KNOWN)
    elif covers(result, record) and not result.is_floating_point():
        record.values, record.constant, record.assumed = None, (value, result.dtype), KNOWN


def _level(written: Iterator[torch.Tensor], level: int) -> None:
    """Written in place, on the shadow as well: it is as sure as what was written."""
    for tensor in written:
        record = RECORDS.get(raw_storage(tensor)._cdata)
        if record is not None:
            record.assumed = max(record.assumed, level)


def _absorb(func: Any, args: Args, result: torch.Tensor) -> None:
    """False `and` unknown is False, True `or` unknown is True; of integers only 0 is such a value."""
    value = _ABSORBED[func]
    for operand in args:
        if not isinstance(operand, torch.Tensor) or (value and operand.dtype is not torch.bool):
            continue
        known = compute(_aten.eq.Scalar, (operand, value), {})
        if known is not None and bool(known[0].all()):
            keep(result, torch.full(result.shape, value, dtype=result.dtype), known[1])
            return


def equal(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.equal`: the truth where both are known, else True for equal shapes."""
    known = compute(func, args, kwargs)
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
