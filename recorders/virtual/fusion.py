"""What inductor would not allocate: inside compiled code, results of element-wise operations are deferred.

Nothing is compiled here. While a compiled function or module runs, and while backward is at nodes that it made, an
operation that inductor fuses gives its result no memory: the result is *deferred* and remembers the storages that it
would be computed from. It gets memory when something reads it that inductor does not fuse (a matrix product, attention,
a collective, code outside), or when it leaves the compiled code. What is read more than once, and computed from more
than inductor reads twice, gets it when something that is not fused comes between its readers: up to there they are one
kernel. A deferred tensor that autograd saves is recomputed in backward, from what it is computed from, if keeping that
costs less than twice the tensor, and if no matrix product wants it there: the rules by which the min-cut partitioner
cuts the whole graph (torch/_functorch/partitioners.py) are applied here tensor by tensor.

A graph ends, and what lives is in memory, where the script reads a value, makes a size of one, or calls what
torch.compiler.disable keeps out. A backward graph hands all its gradients over at its end: those that are added to the
gradients of a step before live until then.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from .fused_kinds import NORM, OTHER, REDUCTION, kind_of
from .private import (
    after_backward,
    current_graph_task_id,
    current_node,
    no_dispatch,
    raw_is_meta,
    raw_storage,
    saved_tensor_hooks,
    sequence_number,
    storage_use_count,
)
from .storages import META, RECORDS, Kind, StorageRecord, is_virtual, tag_storage

if TYPE_CHECKING:
    from .tracker import Tracker

MAX_READS = 4  # torch._inductor.config.realize_reads_threshold
UNMADE = 2  # partitioners.py get_node_weight: to save what forward would not have in memory counts twice


_TO_COPY = torch.ops.aten._to_copy.default
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


class Deferred:
    """On the record of a storage that has no memory yet."""

    __slots__ = ("category", "module", "sources", "stack", "uses")

    def __init__(self, sources: dict[int, torch.UntypedStorage], category: int, module: int, stack: int) -> None:
        self.sources = sources  # by key; in memory, all of them, and kept there
        self.category, self.module, self.stack = category, module, stack
        self.uses = 0  # by fused operations


class _Saved:
    """What autograd keeps instead of a deferred tensor: the tensor until it is settled, then that or its recipe."""

    __slots__ = ("deferred", "dtype", "index", "shape", "strides", "tensor")

    def __init__(self, tensor: torch.Tensor, index: int) -> None:
        self.shape, self.strides, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self.index = index
        self.tensor: torch.Tensor | None = tensor
        self.deferred: Deferred | None = None


class Fusion:
    """One per tracker, from the first call of torch.compile on."""

    def __init__(self, tracker: "Tracker") -> None:
        self._tracker = tracker
        self._depth = 0
        self._opaque = False
        self._kinds: dict[Any, int] = {}
        self._begun = self._born = 0  # nodes and allocations made before this graph
        self._starts: list[int] = []  # of the node numbers that compiled code made, ascending
        self._ends: list[int] = []
        self._kept: dict[int, StorageRecord] = {}  # parameters, and what is saved for a backward to come
        self._saving: list[_Saved] = []  # by the operation that is about to run
        self._waiting: list[StorageRecord] = []  # deferred in this run of compiled code
        self._needed: dict[int, StorageRecord] = {}  # what the backward of this run reads, or computes from
        self._on_need: list[Callable[[dict[int, StorageRecord]], None]] = []  # called with it at the end of the run
        self._shared: list[StorageRecord] = []  # read by several kernels, if anything that is not fused comes between
        self._gradients: list[torch.UntypedStorage] = []  # that this backward graph returns together
        self._accumulates = False  # AccumulateGrad runs, behind a node of that graph
        self._graph = -1  # whose backward is running: an index into _starts
        self._casts: dict[Any, tuple[StorageRecord | None, tuple[int, ...]]] = {}  # of this run of a compiled function

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose operations are those of compiled code."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._region():
                result = function(*args, **kwargs)
            self._realize_all(result)
            return result

        return run

    @contextmanager
    def _region(self) -> Iterator[None]:
        if not self._depth:
            self._begin()
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # compiled code casts a weight where it is used
        self._depth += 1
        try:
            # what stands around (a checkpoint, say) keeps what compiled code saves in its own way
            if self._depth == 1 and torch.is_grad_enabled() and saved_tensor_hooks(False) is None:
                with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                    yield
            else:
                yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._settle_needs()
            self._casts.clear()
            self._waiting.clear()
            self._shared.clear()
            torch.set_autocast_cache_enabled(cached)
            end = sequence_number()
            if not self._depth and end > self._begun:
                self._remember(self._begun, end)

    def _begin(self) -> None:
        self._begun, self._born = sequence_number(), self._tracker.device.allocations

    def _remember(self, start: int, end: int) -> None:
        if self._ends and start < self._ends[-1]:  # the numbers are a thread's own: another one, or a new start
            self._starts, self._ends = [], []
        self._starts.append(start)
        self._ends.append(end)

    def running(self) -> bool:
        """Whether compiled code runs, forward."""
        return self._depth > 0

    def at_end(self, settle: Callable[[dict[int, StorageRecord]], None]) -> None:
        """At the end of the run of compiled code that is under way, call `settle` with what its backward needs."""
        if self._depth:
            self._on_need.append(settle)

    def need(self, values: Any) -> None:
        """Backward needs these tensors, or what they are computed from."""
        for value in values:
            if isinstance(value, (list, tuple)):
                self.need(value)
            elif isinstance(value, torch.Tensor) and value.layout is torch.strided and raw_is_meta(value):
                record = RECORDS.get(raw_storage(value)._cdata)
                if record is not None:
                    sources = () if record.deferred is None else record.deferred.sources
                    self._needed.update((key, RECORDS[key]) for key in (record.key, *sources) if key in RECORDS)

    def _settle_needs(self) -> None:
        for settle in self._on_need:
            settle(self._needed)
        self._on_need.clear()
        self._needed.clear()

    def break_graph(self) -> None:
        """Compiled code ends here and begins anew: what lives is in memory, and backward is two graphs."""
        self._fill_all(self._waiting)
        self._shared.clear()
        self._casts.clear()
        if self._depth and self._begun < (end := sequence_number()):
            self._remember(self._begun, end)
        self._begin()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What compiled code calls without compiling it."""
        depth = self._depth
        if depth:
            self.break_graph()
        self._depth = 0
        try:
            yield
        finally:
            self._depth = depth
            self._begin()

    @contextmanager
    def opaque(self) -> Iterator[None]:
        """An operator that compiled code calls as it is: what its own code does is not fused."""
        before, self._opaque = self._opaque, True
        try:
            yield
        finally:
            self._opaque = before

    def active(self) -> bool:
        """Whether the operation that is about to run belongs to compiled code."""
        if self._opaque:
            return False
        if self._depth:
            self._accumulates = False
            return True
        if not self._starts:
            return False
        node = current_node() if current_graph_task_id() != -1 else None
        if node is None:
            self._accumulates = False
            self._leave(-1)
            return False
        self._accumulates = self._graph >= 0 and type(node).__name__ == "AccumulateGrad"
        if self._accumulates:
            return False
        number = node._sequence_nr()
        at = bisect_right(self._starts, number) - 1
        inside = at >= 0 and number < self._ends[at]
        self._leave(at if inside else -1)
        return inside

    def _hold(self, values: Any) -> None:
        """The gradient that is added to one of a step before."""
        if not self._gradients:
            after_backward(self._gradients.clear)
        self._gradients += [raw_storage(each) for each in values if isinstance(each, torch.Tensor)]

    def _leave(self, graph: int) -> None:
        """A backward graph hands its gradients over when it is through: all of them live until then."""
        if graph != self._graph:
            self._gradients.clear()
            self._shared.clear()
            self._graph = graph

    def cast_again(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """The result of the same cast made before: a compiled graph computes equal nodes once."""
        if func is not _TO_COPY or not self._depth:
            return None
        record, strides = self._casts.get(_cast_key(args[0], kwargs), (None, ()))
        storage = None if record is None else record()
        if record is None or storage is None or RECORDS.get(record.key) is not record:
            return None
        with no_dispatch():
            return torch.empty(0, dtype=kwargs["dtype"], device=META).set_(storage, 0, args[0].shape, strides)

    def before(self, func: Any, args: Any, kwargs: Any) -> int:
        """How the operation that is about to run is fused; what is not gets its operands into memory here."""
        active = self.active()
        kind = self._kind(func) if active else OTHER
        if kind != OTHER and _reads_the_host(args):
            kind = OTHER
        if kind == OTHER:
            if active:
                self._fill_all(self._shared)
                if self._on_need:
                    self.need((*args, *kwargs.values()))
            self.realize_operands((*args, *kwargs.values()))
            if self._accumulates:
                self._hold(args[1:])
        if self._saving:
            self._settle()
        return kind

    def after(self, func: Any, kind: int, args: Any, kwargs: Any, result: Any, index: int) -> None:
        """Defer the results of a fused operation; those of a reduction are in memory."""
        if kind == REDUCTION:
            self._tracker.adopt(result, index)
            return
        if func is _UNSAFE_VIEW:
            return  # the operand itself, in memory or not
        sources: dict[int, torch.UntypedStorage] = {}
        self._gather((*args, *kwargs.values()), sources)
        results = result if isinstance(result, (tuple, list)) else (result,)
        if kind == NORM:
            self._tracker.adopt(results[1:], index)
            self._gather(results[1:], sources)
            results = results[:1]
        for each in results:
            if isinstance(each, torch.Tensor) and raw_is_meta(each):
                self._defer(raw_storage(each), sources, index)
        if func is _TO_COPY and self._depth and kwargs.get("dtype") is not None:
            made = RECORDS[raw_storage(result)._cdata]
            self._casts[_cast_key(args[0], kwargs)] = made, result.stride()

    def _defer(self, storage: torch.UntypedStorage, sources: dict[int, torch.UntypedStorage], index: int) -> None:
        record = RECORDS.get(storage._cdata)
        if record is None:
            context = self._tracker.device.context
            stack = self._tracker.device.stacks.capture(3)
            record = tag_storage(storage, Kind.CUDA, index)
            record.deferred = Deferred(dict(sources), context.category, context.module, stack)
            if self._depth:
                self._waiting.append(record)
        elif record.deferred is not None:  # written in place: computed from more
            record.deferred.sources.update(sources)
            record.deferred.sources.pop(record.key, None)

    def _kind(self, func: Any) -> int:
        found = self._kinds.get(func)
        if found is None:
            found = self._kinds[func] = kind_of(func)
        return found

    def realize_operands(self, values: Any) -> None:
        """Memory for the deferred tensors among the arguments of an operation that is not fused with them."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self._realize(value)
            elif isinstance(value, (list, tuple)):
                self.realize_operands(value)

    def _realize_all(self, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._realize(result)
        elif isinstance(result, dict):
            self.realize_operands(result.values())
        elif isinstance(result, (list, tuple)):
            self.realize_operands(result)

    def _realize(self, tensor: torch.Tensor) -> None:
        if type(tensor) is not torch.Tensor and hasattr(tensor, "_local_tensor"):
            tensor = tensor._local_tensor
        if not raw_is_meta(tensor) or tensor.layout is not torch.strided:
            return
        record = RECORDS.get(raw_storage(tensor)._cdata)
        if record is not None and record.deferred is not None:
            self._fill(record)

    def _fill_all(self, records: list[StorageRecord]) -> None:
        for record in records:
            if RECORDS.get(record.key) is record:
                self._fill(record)
        records.clear()

    def _fill(self, record: StorageRecord | None) -> None:
        if record is None or record.deferred is None:
            return
        deferred, record.deferred = record.deferred, None
        if not record.nbytes or _takes_over(record, deferred, self._born if current_graph_task_id() == -1 else 0):
            return
        context = self._tracker.device.context
        before = context.category, context.module, context.stack
        context.category, context.module, context.stack = deferred.category, deferred.module, deferred.stack
        context.estimated = True  # the size is right; that it is in memory at all is a rule's answer
        try:
            self._tracker.device.fill(record)
        finally:
            context.category, context.module, context.stack = before
            context.estimated = False

    def _gather(self, values: Any, into: dict[int, torch.UntypedStorage]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.layout is torch.strided and is_virtual(value):
                    storage = raw_storage(value)
                    record = RECORDS.get(storage._cdata)
                    deferred = None if record is None else record.deferred
                    if record is not None and deferred is not None:
                        deferred.uses += 1
                        if deferred.uses > 1 and len(deferred.sources) > MAX_READS:
                            self._shared.append(record)
                    if deferred is not None:
                        into.update(deferred.sources)
                        continue
                    into[storage._cdata] = storage
                    if record is not None and value.requires_grad and value.is_leaf:
                        self._kept[record.key] = record  # a parameter is kept anyway
            elif isinstance(value, (list, tuple)):
                self._gather(value, into)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if type(tensor) is not torch.Tensor or not raw_is_meta(tensor) or tensor.layout is not torch.strided:
            return tensor
        record = RECORDS.get(raw_storage(tensor)._cdata)
        if record is None:
            return tensor
        if record.deferred is None:
            self._kept[record.key] = record
            return tensor
        saved = _Saved(tensor, record.index)
        self._saving.append(saved)
        return saved

    def _settle(self) -> None:
        """What the operation reads from memory forward it reads from memory backward; the rest may be recomputed."""
        saving, self._saving = self._saving, []
        for saved in saving:
            assert saved.tensor is not None
            record = RECORDS[raw_storage(saved.tensor)._cdata]
            deferred = record.deferred
            if deferred is not None and self._cost(deferred) >= UNMADE * record.nbytes:
                self._fill(record)
            if record.deferred is None:
                self._kept[record.key] = record
                continue
            self._kept.update((key, RECORDS[key]) for key in record.deferred.sources if key in RECORDS)
            saved.deferred, saved.tensor = record.deferred, None

    def _cost(self, deferred: Deferred) -> int:
        """Bytes of what it is computed from that nothing keeps yet."""
        alive = [RECORDS[key] for key in deferred.sources if key in RECORDS]
        return sum(record.nbytes for record in alive if self._kept.get(record.key) is not record)

    def _unpack(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, _Saved):
            tensor: torch.Tensor = saved
            return tensor
        if saved.tensor is not None or saved.deferred is None:
            assert saved.tensor is not None
            return saved.tensor
        with no_dispatch():
            made = torch.empty_strided(saved.shape, saved.strides, dtype=saved.dtype, device=META)
        record = tag_storage(raw_storage(made), Kind.CUDA, saved.index)
        old = saved.deferred
        record.deferred = Deferred(dict(old.sources), old.category, old.module, old.stack)
        return made


def _references(sources: dict[int, Any], key: int) -> int:
    return sys.getrefcount(sources[key])


_ALONE = _references({0: object()}, 0)


def _takes_over(record: StorageRecord, deferred: Deferred, born: int) -> bool:
    """inductor writes onto what a kernel reads for the last time (config.inplace_buffers), but for what was made before
    the graph; backward may write onto what forward saved (config.donated_buffer).
    """
    for key in deferred.sources:
        source = RECORDS.get(key)
        if source is None or not source.address or source.born <= born:
            continue
        if source.nbytes != record.nbytes or source.index != record.index:
            continue
        if _references(deferred.sources, key) == _ALONE and storage_use_count(key) == 1:
            record.address, record.event, record.born = source.address, source.event, source.born
            source.address = 0
            return True
    return False


def _reads_the_host(values: Any) -> bool:
    """A copy from the host, which is no kernel."""
    return any(isinstance(value, torch.Tensor) and not raw_is_meta(value) and value.dim() for value in values)


def _cast_key(tensor: torch.Tensor, kwargs: Any) -> tuple[Any, ...]:
    key = raw_storage(tensor)._cdata
    version = 0 if tensor.is_inference() else tensor._version
    form = tensor.storage_offset(), tensor.shape, tensor.stride(), kwargs.get("dtype")
    return key, id(RECORDS.get(key)), version, *form
