"""What inductor would not allocate: inside compiled code, results of element-wise operations are deferred.

Nothing is compiled here. While a compiled function or module runs, and while backward is at nodes that it made, an
operation that inductor fuses gives its result no memory: the result is *deferred* and remembers the storages that it
would be computed from. It gets memory when something reads it that inductor does not fuse (a matrix product, attention,
a collective, code outside), when it is computed from more storages than inductor reads in one kernel, or when it
leaves the compiled code. A deferred tensor that autograd saves is recomputed in backward, from what it is computed
from, if keeping that costs no more than keeping the tensor, and if no matrix product wants it there: the rules by which
the min-cut partitioner cuts the whole graph (torch/_functorch/partitioners.py) are applied here tensor by tensor.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from .private import current_graph_task_id, current_node, no_dispatch, raw_is_meta, raw_storage, sequence_number
from .storages import META, RECORDS, Kind, StorageRecord, is_virtual, tag_storage

if TYPE_CHECKING:
    from .tracker import Tracker

MAX_READS = 4  # torch._inductor.config.realize_reads_threshold
# fused like the element-wise ones, without their tag: copies, indirect loads, constants, normalisations
_COPIES = frozenset(
    (
        "_to_copy",
        "clone",
        "copy_",
        "cat",
        "stack",
        "fill_",
        "zero_",
        "zeros",
        "ones",
        "full",
        "arange",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "scalar_tensor",
        "embedding",
        "index",
        "index_select",
        "gather",
        "slice_backward",
        "select_backward",
        "constant_pad_nd",
        "flip",
        "roll",
        "repeat",
        "tril",
        "triu",
        "native_dropout",
        "native_dropout_backward",
        "_softmax",
        "_log_softmax",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "_safe_softmax",
        "nll_loss_backward",
    )
)
# the first result is element-wise, the others are small reductions
_NORMS = frozenset(
    (
        "native_layer_norm",
        "native_layer_norm_backward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
    )
)
# read through whatever they are fused with; what they return is in memory
_REDUCTIONS = frozenset(
    (
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "any",
        "all",
        "argmax",
        "argmin",
        "var",
        "std",
        "var_mean",
        "prod",
        "norm",
        "linalg_vector_norm",
        "_foreach_norm",
        "logsumexp",
        "cumsum",
        "count_nonzero",
        "nll_loss_forward",
    )
)
ELEMENTWISE, NORM, REDUCTION, OTHER = range(4)


_TO_COPY = torch.ops.aten._to_copy.default


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
        self._kinds: dict[Any, int] = {}
        self._starts: list[int] = []  # of the node numbers that compiled code made, ascending
        self._ends: list[int] = []
        self._kept: dict[int, StorageRecord] = {}  # parameters, and what is saved for a backward to come
        self._saving: list[_Saved] = []  # by the operation that is about to run
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
        start = sequence_number()
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # compiled code casts a weight where it is used
        self._depth += 1
        try:
            if self._depth == 1 and torch.is_grad_enabled():
                with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                    yield
            else:
                yield
        finally:
            self._depth -= 1
            self._casts.clear()
            torch.set_autocast_cache_enabled(cached)
            end = sequence_number()
            if not self._depth and end > start:
                self._remember(start, end)

    def _remember(self, start: int, end: int) -> None:
        if self._ends and start < self._ends[-1]:  # the numbers are a thread's own: another one, or a new start
            self._starts, self._ends = [], []
        self._starts.append(start)
        self._ends.append(end)

    def active(self) -> bool:
        """Whether the operation that is about to run belongs to compiled code."""
        if self._depth:
            return True
        if not self._starts or current_graph_task_id() == -1:
            return False
        node = current_node()
        if node is None:
            return False
        number = node._sequence_nr()
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

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
        kind = self._kind(func) if self.active() else OTHER
        if kind != OTHER and _reads_the_host(args):
            kind = OTHER
        if kind == OTHER:
            self.realize_operands((*args, *kwargs.values()))
        if self._saving:
            self._settle()
        return kind

    def after(self, func: Any, kind: int, args: Any, kwargs: Any, result: Any, index: int) -> None:
        """Defer the results of a fused operation; those of a reduction are in memory."""
        if kind == REDUCTION:
            self._tracker.adopt(result, index)
            return
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
        elif record.deferred is not None:  # written in place: computed from more
            record.deferred.sources.update(sources)
            record.deferred.sources.pop(record.key, None)

    def _kind(self, func: Any) -> int:
        found = self._kinds.get(func)
        if found is None:
            found = self._kinds[func] = _kind_of(func)
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

    def _fill(self, record: StorageRecord | None) -> None:
        if record is None or record.deferred is None:
            return
        deferred, record.deferred = record.deferred, None
        if not record.nbytes:
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
                    if deferred is not None:
                        deferred.uses += 1
                        if deferred.uses > 1 and len(deferred.sources) > MAX_READS:
                            self._fill(record)
                            deferred = None
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
            if deferred is not None and self._cost(deferred) > record.nbytes:
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


def _kind_of(func: Any) -> int:
    name = func._schema.name.split("::")[1]
    if name in _NORMS:
        return NORM
    if name in _REDUCTIONS:
        return REDUCTION
    fused = torch.Tag.pointwise in func.tags or name in _COPIES or name.startswith("_foreach_")
    return ELEMENTWISE if fused else OTHER


def _reads_the_host(values: Any) -> bool:
    """A copy from the host, which is no kernel."""
    return any(isinstance(value, torch.Tensor) and not raw_is_meta(value) and value.dim() for value in values)


def _cast_key(tensor: torch.Tensor, kwargs: Any) -> tuple[Any, ...]:
    key = raw_storage(tensor)._cdata
    version = 0 if tensor.is_inference() else tensor._version
    form = tensor.storage_offset(), tensor.shape, tensor.stride(), kwargs.get("dtype")
    return key, id(RECORDS.get(key)), version, *form
