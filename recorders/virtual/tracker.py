"""The one dispatch mode: it sees every operation and every storage, and allocates what CUDA would.

A factory on `cuda` is run on `meta`; each new meta storage gets a block of the virtual GPU's allocator, and gives it
back when the storage dies. What other files know about single operations comes in through `handlers` (instead of the
operation), `scratch_for` (what its kernel allocates beside the outputs) and `after` (look at inputs and outputs).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...diagnosers.interface import CATEGORIES, Category
from .device import GpuTarget, VirtualDevice
from .engine import TRANSFERS, Engine, transfer
from .fastmeta import Memo
from .kernel_call import KernelCall
from .private import (
    COMPOSITE_IMPLICIT,
    FAKE_MODE_KEY,
    current_graph_task_id,
    get_dispatch_mode,
    has_kernel_for,
    raw_is_meta,
    raw_storage,
)
from .scratch import Scratch
from .storages import META, RECORDS, Kind, inside, looking_inside, state, tag_storage

ACTIVATION, COMMUNICATION = (CATEGORIES.index(each.value) for each in (Category.ACTIVATION, Category.COMMUNICATION))
Handler = Callable[["Tracker", Any, tuple[Any, ...], dict[str, Any]], Any]


ScratchFor = Callable[[Any, tuple[Any, ...], dict[str, Any], Any, GpuTarget], Sequence[Scratch]]


class OpInfo:
    """What the schema says about one operation, looked up once."""

    __slots__ = ("communicates", "composite", "inplace", "may_resize", "name", "slow", "view")

    def __init__(self, func: Any, memo: Memo | None = None) -> None:
        self.name: str = func.name()
        self.communicates = self.name.startswith(("c10d", "_c10d", "fsdp"))
        self.view = bool(func.is_view)
        short = func._schema.name.split("::")[1]
        self.inplace = bool(func._schema.is_mutable) and short.endswith("_") and not short.startswith("__")
        self.may_resize = bool(func._schema.is_mutable) and (
            short in ("resize_", "resize_as_", "set_") or "out" in func._overloadname
        )
        self.slow = memo is not None and self.name in memo.slow and not func._schema.is_mutable
        self.composite = has_kernel_for(self.name, COMPOSITE_IMPLICIT)


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotations
    """Install with `with tracker:` once per thread (`session.virtual_session` does)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch.compile runs eagerly here; the wrapper would import torch._dynamo (1.1 s)

    def __init__(self, device: VirtualDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.device = device
        self.operations = 0  # dispatched operations that touched a virtual tensor
        self.handlers: dict[Any, Handler] = {}
        self.scratch_for: ScratchFor | None = None
        self.after: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None = None
        self.engine: Engine | None = None
        self.memo: Memo | None = None
        self.handles: dict[tuple[int, int, bool, str], int] = {}  # (device, stream, in backward, source) -> address
        self.estimated: dict[str, list[int]] = {}  # source -> [times, bytes] of estimated scratch
        self._ops: dict[Any, OpInfo] = {}
        self._foreign: dict[type, int] = {}  # 0 plain, 1 FakeTensor, 2 wrapper subclass

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types:
            foreign = self._foreign_kind(types)
            if foreign == 2:
                return NotImplemented  # the subclass unwraps itself; its inner operations come back here
            if foreign == 1:
                return _propagate(func, args, kwargs or {})
        if get_dispatch_mode(FAKE_MODE_KEY) is not None:
            return _propagate(func, args, kwargs or {})
        inside.depth += 1
        try:
            return self._run(func, args, kwargs or {})
        except torch.OutOfMemoryError as full:
            error = full.with_traceback(None)  # on CUDA no frame below the operation keeps its outputs alive
        finally:
            inside.depth -= 1
        args = kwargs = None
        try:
            raise error
        finally:
            del error

    def _foreign_kind(self, types: Sequence[type]) -> int:
        worst = 0
        for each in types:
            kind = self._foreign.get(each)
            if kind is None:
                kind = self._foreign[each] = _foreign_kind(each)
            worst = max(worst, kind)
        return worst

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        info = self._ops.get(func)
        if info is None:
            info = self._ops[func] = OpInfo(func, self.memo)
        handler = self.handlers.get(func)
        if handler is not None:
            result = handler(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if info.composite:
            result = self._decompose(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return self.call(func, args, kwargs, info)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], info: OpInfo | None = None) -> Any:
        """Run an operation on `meta` and allocate its outputs; what a handler uses for the ordinary part."""
        info = info or self._ops.get(func) or OpInfo(func, self.memo)
        kind, index = placement(self.device, args, kwargs)
        if kind is None:
            return func(*args, **kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": META}
        if kind is not Kind.CUDA:
            result = func(*args, **kwargs)
            self.tag(result, kind)
            return result
        self.operations += 1
        if info.view:
            return func(*args, **kwargs)
        engine = self.engine
        donor = None
        in_backward = current_graph_task_id() != -1
        if engine is not None:
            if in_backward:
                engine.at_node(self.device.allocations)
            if func in TRANSFERS:
                donor = engine.donor(func, args, kwargs, in_backward)
        context = self.device.context
        context.category = self._role(info, args, in_backward)
        result = self.memo(func, args, kwargs) if info.slow and self.memo is not None else func(*args, **kwargs)
        if info.may_resize:
            self._resized(args, kwargs)
        wanted = () if self.scratch_for is None else self.scratch_for(func, args, kwargs, result, self.device.target)
        kernel = KernelCall(self, wanted, index) if wanted else None
        if kernel is not None:
            kernel.begin()
        try:
            if not info.inplace and not (donor is not None and transfer(donor, result)):
                self.adopt(result, index)
        except torch.OutOfMemoryError:
            if kernel is not None:
                kernel.abandon()
            raise
        if kernel is not None:
            kernel.finish()
        if engine is not None:
            engine.done(func, result)
        if self.after is not None:
            self.after(func, args, kwargs, result)
        return result

    def _role(self, info: OpInfo, args: tuple[Any, ...], in_backward: bool) -> int:
        """Category of what the operation allocates, where it differs from the phase's own; -1 = the phase's."""
        if info.communicates:
            return COMMUNICATION
        if in_backward:
            return ACTIVATION if torch.is_grad_enabled() else -1  # recomputation, or a graph of gradients
        if self.device.context.phase_category < 0 and torch.is_grad_enabled():
            return ACTIVATION if any(isinstance(a, torch.Tensor) and a.requires_grad for a in args) else -1
        return -1

    def adopt(self, result: Any, index: int = 0) -> None:
        """Allocate every new meta storage among `result` (a tensor or a nest of them) on device `index`."""
        if isinstance(result, torch.Tensor):
            if raw_is_meta(result):
                storage = raw_storage(result)
                if storage._cdata not in RECORDS:
                    self.device.context.stack = self.device.stacks.capture(2)
                    self.device.adopt(storage, index)
        elif isinstance(result, (tuple, list)):
            for each in result:
                self.adopt(each, index)

    def tag(self, result: Any, kind: Kind) -> None:
        """Tag every new meta storage among `result` as true meta or virtual host."""
        if isinstance(result, torch.Tensor):
            if raw_is_meta(result) and raw_storage(result)._cdata not in RECORDS:
                tag_storage(raw_storage(result), kind)
        elif isinstance(result, (tuple, list)):
            for each in result:
                self.tag(each, kind)

    def _decompose(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A composite that autograd did not open (inference_mode): open it, so that its temporaries are seen."""
        depth, inside.depth = inside.depth, 0
        try:
            with self:
                return func.decompose(*args, **kwargs)
        finally:
            inside.depth = depth

    def _resized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and raw_is_meta(value):
                storage = raw_storage(value)
                record = RECORDS.get(storage._cdata)
                if record is not None and record.nbytes != storage.nbytes():
                    self.device.resized(storage, storage.nbytes())

    def note_estimate(self, source: str, nbytes: int) -> None:
        """Count an allocation whose size is an estimate; the report lists them."""
        count = self.estimated.setdefault(source, [0, 0])
        count[0] += 1
        count[1] = max(count[1], nbytes)

    def release_handles(self) -> None:
        """torch._C._cuda_clearCublasWorkspaces: every handle's workspace goes back."""
        for (index, *_), address in self.handles.items():
            self.device.free(address, index)
        self.handles.clear()


def placement(device: VirtualDevice, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Kind | None, int]:
    """Where the outputs of an operation belong: (kind, device index); kind None = nothing virtual is involved.

    An explicit cuda device wins, then any virtual CUDA operand, then virtual host, then true meta.
    """
    asked = kwargs.get("device")
    if asked is not None and asked.type == "cuda":
        return Kind.CUDA, device.current if asked.index is None else asked.index
    found: Kind | None = None
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            if not raw_is_meta(value):
                continue
            if not state.exotic and device.count == 1:
                return Kind.CUDA, 0
            record = RECORDS.get(raw_storage(value)._cdata)
            if record is None or record.kind is Kind.CUDA:
                return Kind.CUDA, 0 if record is None else record.index
            found = Kind.HOST if Kind.HOST in (found, record.kind) else Kind.META
        elif isinstance(value, (list, tuple)) and value and not isinstance(value[0], int):
            inner = placement(device, value, {})
            if inner[0] is Kind.CUDA:
                return inner
            if inner[0] is not None:
                found = Kind.HOST if Kind.HOST in (found, inner[0]) else Kind.META
    if found is None and asked is not None and asked.type == "meta":
        return (Kind.META, 0) if inside.true_meta else (Kind.CUDA, device.current)
    return found, 0


def _propagate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Shape propagation on FakeTensors (DTensor and others): nothing is allocated, and their inner tensors are meta."""
    with looking_inside():
        return func(*args, **kwargs)


def _foreign_kind(each: type) -> int:
    from torch._subclasses.fake_tensor import FakeTensor

    if issubclass(each, FakeTensor):
        return 1
    own = getattr(each, "__torch_dispatch__", None)
    return 0 if own is None or own is torch.Tensor.__torch_dispatch__ else 2
