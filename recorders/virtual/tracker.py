"""The one dispatch mode: it sees every operation and every storage, and allocates what CUDA would.

A factory on `cuda` is run on `meta`; each new meta storage gets a block of the virtual GPU's allocator, and gives it
back when the storage dies. What other files know about single operations comes in through `handlers` (instead of the
operation), `scratch_for` (what its kernel allocates beside the outputs) and `after` (look at inputs and outputs).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...diagnosers.interface import CATEGORIES, Category
from ..errors import UnsupportedOperationError
from .device import GpuTarget, VirtualDevice
from .engine import Engine, transfer
from .fastmeta import Memo
from .fused_kinds import OTHER
from .fusion import Fusion
from .higher_order import run_eagerly
from .host import as_meta, as_real, wants_virtual
from .kernel_call import KernelCall
from .operands import Operands, look, mixed_devices, placement
from .operations import OpInfo
from .private import (
    FAKE_MODE_KEY,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    current_graph_task_id,
    fake_tensor_class,
    get_dispatch_mode,
    open_composite,
    raw_is_meta,
    raw_storage,
)
from .python_kernels import run_python_kernel
from .scratch import Scratch
from .storages import META, RECORDS, Kind, inside, looking_inside, tag_storage
from .unsupported import unsupported

ACTIVATION, COMMUNICATION = (CATEGORIES.index(each.value) for each in (Category.ACTIVATION, Category.COMMUNICATION))
Handler = Callable[["Tracker", Any, tuple[Any, ...], dict[str, Any]], Any]


ScratchFor = Callable[[Any, tuple[Any, ...], dict[str, Any], Any, GpuTarget], Sequence[Scratch]]


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotations
    """Install with `with tracker:` once per thread (`session.virtual_session` does)."""

    supports_higher_order_operators = True

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
        self.category = -1  # set by a handler: the role of what the operation that follows allocates
        self.read_back: Callable[[torch.Tensor], torch.Tensor] | None = None  # values of a virtual tensor, on the host
        self.note: Callable[[str], None] | None = None  # an assumption that the report has to name
        self.taught: Callable[[Any], Handler | None] | None = None  # asked once for each operation
        self.engine: Engine | None = None
        self.memo: Memo | None = None
        self.fusion: Fusion | None = None  # from the script's first torch.compile on
        self.handles: dict[tuple[int, int, bool, str], int] = {}  # (device, stream, in backward, source) -> address
        self.tried: set[object] = set()  # (device, key) of the calls for which a library has tried its algorithms
        self.estimated: dict[str, list[int]] = {}  # source -> [times, bytes] of estimated scratch
        self._ops: dict[int, OpInfo] = {}  # by identity: an operation's own hash is Python, and slow
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
        if type(func) is not OpOverload and isinstance(func, HigherOrderOperator):
            with self:
                return run_eagerly(func, args, kwargs or {}, self)
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
        info = self._ops.get(id(func))
        if info is None:
            info = self._ops[id(func)] = OpInfo(func, self.memo)
            if self.taught is not None and (told := self.taught(func)) is not None:
                self.handlers[func] = told
            elif info.python:
                self.handlers.setdefault(func, run_python_kernel)
        if info.breaks_graph and self.fusion is not None and not _picks_by_number(func, args):
            self.fusion.break_graph()
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

    def call(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        info: OpInfo | None = None,
        run: Callable[..., Any] | None = None,
    ) -> Any:
        """Run an operation on `meta` and allocate its outputs; what a handler uses for the ordinary part.

        `run` makes the outputs instead of `func`, for operations that `meta` cannot do, or not as CUDA does.
        """
        info = info or self._ops.get(id(func)) or OpInfo(func, self.memo)
        found = look(args, kwargs, self.device.count > 1, Operands())
        asked = kwargs.get("device") if kwargs else None
        kind: Kind | None = Kind.CUDA
        index = found.index
        if asked is not None or index < 0:
            kind, index = placement(found, asked, self.device.current)
        if kind is None:
            if not info.factory or not wants_virtual(args, kwargs):
                return func(*args, **kwargs)
            kind = Kind.HOST
        if asked is not None or info.factory:
            kwargs = {**kwargs, "device": META}
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        if kind is not Kind.CUDA:
            return self._off_gpu(func, args, kwargs, info, kind, found)
        if (found.real or found.host or found.second >= 0) and found.index >= 0:
            error = mixed_devices(found, info.name)
            if error is not None:
                raise error
        self.operations += 1
        if info.view:
            return self._execute(func, args, kwargs, info)
        return self._on_gpu(func, args, kwargs, info, index, run)

    def _on_gpu(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        info: OpInfo,
        index: int,
        run: Callable[..., Any] | None,
    ) -> Any:
        engine, context, device = self.engine, self.device.context, self.device
        donor = None
        in_backward = current_graph_task_id() != -1
        if engine is not None:
            if in_backward:
                engine.at_node(device.allocations)
            if info.transfers:
                donor = engine.donor(func, args, kwargs, in_backward)
        context.category = self.category if self.category >= 0 else self._role(info, args, in_backward)
        self.category = -1
        fused = OTHER
        if self.fusion is not None:
            fused = OTHER if run is not None else self.fusion.before(func, args, kwargs)
            donor = donor if fused == OTHER else None
            again = None if fused == OTHER else self.fusion.cast_again(func, args, kwargs)
            if again is not None:
                return again
        try:
            result = self._execute(func, args, kwargs, info) if run is None else run(*args, **kwargs)
            if info.may_resize:
                self._resized(args, kwargs)
            in_place = info.inplace or (donor is not None and transfer(donor, result))
            if fused == OTHER or self.fusion is None:
                self._allocate(func, args, kwargs, result, index, in_place)
            else:
                self.fusion.after(func, fused, args, kwargs, result, index)
        finally:
            context.category = -1
        if engine is not None:
            engine.done(result if info.product else None)
        if self.after is not None:
            self.after(func, args, kwargs, result)
        return result

    def _allocate(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, index: int, in_place: bool
    ) -> None:
        """The outputs of an operation, unless it worked in place, and what its kernel takes around them."""
        wanted = () if self.scratch_for is None else self.scratch_for(func, args, kwargs, result, self.device.target)
        if not wanted:
            if not in_place:
                self.adopt(result, index)
            return
        kernel = KernelCall(self, wanted, index)
        kernel.begin()
        try:
            if not in_place:
                self.adopt(result, index)
        except torch.OutOfMemoryError:
            kernel.abandon()
            raise
        kernel.finish()

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], info: OpInfo) -> Any:
        try:
            if info.slow and self.memo is not None:
                return self.memo(func, args, kwargs)
            return func(*args, **kwargs)
        except RuntimeError as error:  # NotImplementedError is one
            if not _tells_no_shape(error):
                raise
            if self.note is not None:
                self.note(f"{info.name} is not known; what the script did after its error is")
            raise unsupported(info.name, str(error)) from None

    def _off_gpu(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], info: OpInfo, kind: Kind, found: Operands
    ) -> Any:
        """On virtual host or true meta tensors: nothing is allocated."""
        if kind is Kind.HOST and found.real:
            if info.inplace and not raw_is_meta(args[0]):
                return args[0]  # a real tensor cannot take values that nobody computed: it keeps its own
            args, kwargs = as_meta(args), {key: as_meta(value) for key, value in kwargs.items()}
        try:
            result = self._execute(func, args, kwargs, info)
        except UnsupportedOperationError:
            if kind is not Kind.HOST:
                raise
            if self.note is not None:
                self.note(f"values of a big host tensor, which are not computed, were needed by {info.name}: zeros")
            return func(*as_real(args), **{key: as_real(value) for key, value in kwargs.items() if key != "device"})
        self.tag(result, kind)
        return result

    def _role(self, info: OpInfo, args: tuple[Any, ...], in_backward: bool) -> int:
        """Category of what the operation allocates, where it differs from the phase's own; -1 = the phase's."""
        if info.communicates:
            return COMMUNICATION
        if in_backward:
            return ACTIVATION if torch.is_grad_enabled() else -1  # recomputation, or a graph of gradients
        if info.likeness:
            return -1
        if self.device.context.phase_category < 0 and torch.is_grad_enabled():
            return ACTIVATION if any(isinstance(a, torch.Tensor) and a.requires_grad for a in args) else -1
        return -1

    def adopt(self, result: Any, index: int = 0) -> None:
        """Allocate every new meta storage among `result` (a tensor or a nest of them) on device `index`."""
        if isinstance(result, torch.Tensor):
            if result.layout in _SPARSE:
                self.adopt(_parts(result), index)
            elif raw_is_meta(result):
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
        return self.reentered(open_composite, (func, *args), kwargs)

    def reentered(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `run` from a handler as the script would: the tracker sees its operations, devices read `cuda`."""
        depth, inside.depth = inside.depth, 0
        try:
            with self:
                return run(*args, **kwargs)
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


_INDEX = torch.ops.aten.index.Tensor
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _parts(sparse: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a sparse one is made of."""
    if sparse.layout is torch.sparse_coo:
        return [sparse._indices(), sparse._values()]
    by_row = sparse.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = [sparse.crow_indices(), sparse.col_indices()] if by_row else [sparse.ccol_indices(), sparse.row_indices()]
    return [*outer, sparse.values()]


def _picks_by_number(func: Any, args: tuple[Any, ...]) -> bool:
    """`x[rows]`: indices of numbers give their own shape, those of truth values as many as are true."""
    if func is not _INDEX:
        return False
    return not any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])


def _tells_no_shape(error: RuntimeError) -> bool:
    """Whether nobody told the shapes: no kernel for `meta`, or a torch.library.custom_op without a fake one."""
    text = str(error)
    if isinstance(error, NotImplementedError):
        return not text.startswith("Cannot copy out of meta")
    return text.startswith("There was no fake impl registered")


def _propagate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Shape propagation on FakeTensors (DTensor and others): nothing is allocated, and their inner tensors are meta.

    Random numbers in place change no shape; FakeTensor would decompose them to a copy that asks for the GPU's driver.
    """
    if torch.Tag.nondeterministic_seeded in func.tags and func._schema.name.endswith("_"):
        return args[0]
    with looking_inside():
        return func(*args, **kwargs)


def _foreign_kind(each: type) -> int:
    if issubclass(each, fake_tensor_class()):
        return 1
    own = getattr(each, "__torch_dispatch__", None)
    return 0 if own is None or own is torch.Tensor.__torch_dispatch__ else 2
