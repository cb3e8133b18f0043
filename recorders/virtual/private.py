"""All private names of torch that the virtual GPU stands on; those that a shim puts in place stand in the shim.

`problems()` says at the start of a session which of them this torch lacks and which behave otherwise than every number
needs, so that a new torch can never make wrong ones. A name with a second way, slower and equally right, has it here
(`instead`) or where it is used: `fastmeta` (stock kernels), `engine` (nothing in place).
"""

import gc
import re
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch.utils._device import DeviceContext as DeviceContext
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

TRIED_VERSIONS = ("2.13.0", "2.14.1")
_missing: list[str] = []


class _Absent:
    """Stands for a name that this torch lacks, until the session refuses to begin."""

    def __getattr__(self, name: str) -> "_Absent":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch {torch.__version__} lacks {', '.join(_missing)}")


def _named(path: str, **second: Any) -> Any:
    """What `path` below torch leads to; where it leads nowhere, `instead`, or a problem."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is not None:
        return found
    if "instead" in second:
        return second["instead"]
    _missing.append(f"torch.{path}")
    return _Absent()


C: Any = torch._C  # shims put there what a CUDA build has
C_NN: Any = _named("_C._nn")
TENSOR_BASE: Any = _named("_C.TensorBase", instead=getattr(torch._C, "_TensorBase", None))
STORAGE_BASE: Any = _named("_C.StorageBase")

# the C++ answers, untouched by the class-level overrides of `face`
raw_device: Callable[[torch.Tensor], torch.device] = TENSOR_BASE.device.__get__
raw_is_meta: Callable[[torch.Tensor], bool] = TENSOR_BASE.is_meta.__get__
raw_storage: Callable[[torch.Tensor], torch.UntypedStorage] = TENSOR_BASE.untyped_storage
raw_getitem: Callable[[torch.Tensor, Any], torch.Tensor] = TENSOR_BASE.__getitem__
shallow_copy_compatible: Callable[[torch.Tensor, torch.Tensor], bool] = _named("_has_compatible_shallow_copy_type")
swap_tensor_impl: Callable[[torch.Tensor, torch.Tensor], None] = _named("_C._swap_tensor_impl")

is_functorch_wrapper: Callable[[torch.Tensor], bool] = _named("_C._functorch.is_functorch_wrapped_tensor")
functorch_inner: Callable[[torch.Tensor], torch.Tensor] = _named("_C._functorch.get_unwrapped")

# which node of which backward pass runs on this thread; -1 = none
current_graph_task_id: Callable[[], int] = _named("_C._current_graph_task_id")
current_node: Callable[[], Any] = _named("_C._current_autograd_node")
sequence_number: Callable[[], int] = _named("_C._autograd._get_sequence_nr")
after_backward: Callable[[Callable[[], None]], None] = _named("autograd.Variable._execution_engine.queue_callback")

# reference counts that decide whether the engine may accumulate in place (engine.py)
storage_use_count: Callable[[int], int] = _named("_C._storage_Use_Count")
tensor_use_count: Callable[[torch.Tensor], int] = TENSOR_BASE._use_count

# modes
no_dispatch: Callable[[], Any] = _named("_C._DisableTorchDispatch")
get_dispatch_mode: Callable[[Any], Any] = _named("_C._get_dispatch_mode")
FAKE_MODE_KEY: Any = _named("_C._TorchDispatchModeKey.FAKE")
current_dispatch_mode: Callable[[], Any] = _named("utils._python_dispatch._get_current_dispatch_mode")
pop_dispatch_mode: Callable[[], Any] = _named("utils._python_dispatch._pop_mode")
function_mode_stack: Callable[[], list[Any]] = _named("overrides._get_current_function_mode_stack")
function_modes: Callable[[], int] = _named("_C._len_torch_function_stack", instead=lambda: len(function_mode_stack()))

device_constructors: Callable[[], set[Any]] = _device_constructors

# the dispatcher
has_kernel_for: Callable[[str, Any], bool] = _named("_C._dispatch_has_kernel_for_dispatch_key")
operator_names: Callable[[], list[str]] = _named("_C._dispatch_get_all_op_names")
_kernel_table: Callable[[str], str] = _named("_C._dispatch_dump_table", instead=lambda name: "")
_KEY: Any = _named("_C.DispatchKey")
AUTOCAST_CUDA: Any = _KEY.AutocastCUDA
EXPLICIT_KEYS: tuple[Any, ...] = (_KEY.CompositeExplicitAutograd, _KEY.CompositeExplicitAutogradNonFunctional)
COMPOSITE_IMPLICIT = "CompositeImplicitAutograd"
set_key_included: Callable[[Any, bool], None] = _named("_C._dispatch_tls_set_dispatch_key_included")
below_autograd: Callable[[], AbstractContextManager[None]] = _named("_C._AutoDispatchBelowAutograd")
_exclude: Any = _named("_C._ExcludeDispatchKeyGuard")
_key_set: Any = _named("_C.DispatchKeySet")

# single functions
sdp_priority_order: Callable[[], list[int]] = _named("_C._get_sdp_priority_order", instead=list)
make_wrapper_subclass: Callable[..., torch.Tensor] = _named("Tensor._make_wrapper_subclass")
saved_tensor_hooks: Callable[[bool], Any] = _named("_C._autograd._top_saved_tensors_default_hooks")

# what checkpointing keeps of the operations that a policy saves, and the hook that sees what autograd would have saved
sac_entry: Any = _named("utils.checkpoint._VersionWrapper", instead=None)
checkpoint_hook: Any = _named("utils.checkpoint._checkpoint_hook", instead=None)
finished_work: Callable[[Any], Any] = _named("_C._distributed_c10d._create_work_from_future")


def without_key(key: Any) -> AbstractContextManager[None]:
    """Within, operations of this thread pass `key` by."""
    guard: AbstractContextManager[None] = _exclude(_key_set(key))
    return guard


def cuda_kernel_is_python(name: str) -> bool:
    """Whether what CUDA runs for the operator was registered by Python code; False where this torch does not say."""
    row = re.search(
        r"^CUDA: registered at (.*?):\d+ \[(?:default backend )?kernel\]", _kernel_table(name), re.MULTILINE
    )
    return row is not None and row.group(1).endswith(".py")


def run_cuda_kernel(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What CUDA runs for the operator, whatever device its operands are on."""
    return func.redispatch(_key_set(_KEY.CUDA), *args, **kwargs)


def open_composite(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the C++ body of a composite; `func.decompose` would prefer Python ones, which copy where C++ aliases."""
    return func._op_dk(_KEY.CompositeImplicitAutograd, *args, **kwargs)


def fake_tensor_class() -> type[torch.Tensor]:
    """Imported when it is first asked for: it takes a second."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


def decompositions() -> dict[str, dict[Any, Callable[..., Any]]]:
    from torch._decomp import global_decomposition_table

    return global_decomposition_table


def meta_registrations() -> Any:
    """The module that registers Python meta kernels in a library of its own; None where it has no such library."""
    from torch import _meta_registrations

    return _meta_registrations if hasattr(_meta_registrations, META_LIBRARY) else None


META_LIBRARY = "_meta_lib_dont_use_me_use_register_meta"


def shape_verifier() -> Any:
    """What DDP compares the ranks' parameters with; torch.distributed.utils is imported late."""
    from torch.distributed.utils import _verify_param_shape_across_processes

    return _verify_param_shape_across_processes


def device_index(device: Any) -> int:
    """Of a device as torch.cuda's functions take it: None, a number, a string or a torch.device."""
    from torch.cuda._utils import _get_device_index

    return _get_device_index(device, optional=True)


def _no_flex(*args: Any) -> Any:
    raise NotImplementedError("this torch has no flex_attention")


_flex: Any = sys.modules.get("torch._higher_order_ops.flex_attention")  # `import torch` loads it
flex_operator: Any = getattr(_flex, "flex_attention", None)
flex_scores: Callable[..., Any] = getattr(_flex, "_math_attention_inner", None) or _no_flex
flex_autocasts = hasattr(_flex, "_flex_attention_autocast_impl")  # torch 2.12 and later cast under autocast

RawKernel = Callable[..., Any]


def register_kernels(key: str, kernels: dict[str, RawKernel]) -> Callable[[], None]:
    """Put Python kernels for `aten` operations (by overload name) on one dispatch key; returns what takes them off."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, kernel in kernels.items():
        library.impl(name, kernel, key, allow_override=True)  # type: ignore[no-untyped-call]
    return library._destroy


def register_meta_kernels(kernels: dict[str, RawKernel]) -> Callable[[], None]:
    """Meta kernels for operations that are composite on CPU builds, which `Library.impl` refuses; returns the undo."""
    library: Any = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
    for name, kernel in kernels.items():
        library.m.impl(name, "Meta", kernel)
    undo: Callable[[], None] = library._destroy
    return undo


def problems() -> tuple[str, ...]:
    """What this torch does differently from what the virtual GPU needs; empty = all is well. Takes milliseconds."""
    if _missing:
        return (f"it lacks {', '.join(_missing)}",)
    checks = (_storage_dies_with_last_reference, _node_is_known_in_backward, _single_names_do_what_they_say)
    return tuple(problem for check in checks for problem in check())


def _single_names_do_what_they_say() -> list[str]:
    return [f"{name} does not do what it did" for name, holds in _HOLDS.items() if not _holds(holds)]


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception:  # a signature that changed is as wrong as an answer
        return False


def _swaps() -> bool:
    one, two = torch.zeros(1), torch.ones(2)
    swap_tensor_impl(one, two)
    return one.shape == (2,) and two.shape == (1,)


def _runs_below_autograd() -> bool:
    leaf = torch.ones(2, requires_grad=True)
    with below_autograd():
        return not torch.neg(leaf).requires_grad


def _is_called_behind_backward() -> bool:
    leaf, seen = torch.ones(2, requires_grad=True), []
    hook: Any = leaf.register_hook
    hook(lambda _: after_backward(lambda: seen.append(leaf.grad is not None)))
    torch.autograd.backward(torch.sum(leaf * 2))
    return seen == [True]


def _counts_nodes() -> bool:
    leaf = torch.ones(2, requires_grad=True)
    begin = sequence_number()
    node: Any = (leaf * 2).grad_fn
    return bool(begin <= node._sequence_nr() < sequence_number())


def _sees_hooks() -> bool:
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    with hooks(str, str):
        return bool(saved_tensor_hooks(False)[0] is str)


def _sees_through_vmap() -> bool:
    seen: list[bool] = []

    def look(row: torch.Tensor) -> torch.Tensor:
        seen.append(is_functorch_wrapper(row) and functorch_inner(row).shape == (3, 2))
        return row

    torch.func.vmap(look)(torch.zeros(3, 2))
    return seen == [True]


def _sees_device_contexts() -> bool:
    with torch.device("cpu"):
        stack = function_mode_stack()
        return function_modes() == len(stack) and isinstance(stack[-1], DeviceContext)


def _counts_references() -> bool:
    tensor = torch.empty(2)
    key, alone = raw_storage(tensor)._cdata, storage_use_count(raw_storage(tensor)._cdata)
    view = tensor[1:]
    return storage_use_count(key) == alone + 1 and tensor_use_count(view) >= 1


class _Seeing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotations
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("seen")


def _hides_from_modes() -> bool:
    if get_dispatch_mode(FAKE_MODE_KEY) is not None:
        return False
    mode: Any = _Seeing
    with mode() as entered, no_dispatch():
        torch.empty(1)
        return bool(current_dispatch_mode() is entered)


def _opens_composites() -> bool:
    one = torch.ones(2, 2)
    return bool(torch.equal(open_composite(torch.ops.aten.matmul.default, one, one), one + 1))


def _knows_autocast() -> bool:
    with without_key(AUTOCAST_CUDA):
        return has_kernel_for("aten::mm", AUTOCAST_CUDA) and "aten::add.Tensor" in operator_names()


_HOLDS: dict[str, Callable[[], bool]] = {
    "torch._C._swap_tensor_impl": _swaps,
    "torch._C._AutoDispatchBelowAutograd": _runs_below_autograd,
    "queue_callback": _is_called_behind_backward,
    "torch._C._autograd._get_sequence_nr": _counts_nodes,
    "torch._C._autograd._top_saved_tensors_default_hooks": _sees_hooks,
    "torch._C._functorch": _sees_through_vmap,
    "the stack of function modes": _sees_device_contexts,
    "torch._C._storage_Use_Count": _counts_references,
    "torch._C._DisableTorchDispatch": _hides_from_modes,
    "torch._C.DispatchKey.CompositeImplicitAutograd": _opens_composites,
    "torch._C.DispatchKey.AutocastCUDA": _knows_autocast,
}


def _storage_dies_with_last_reference() -> list[str]:
    """A weak reference to a storage must live as long as any tensor on it, and not longer."""
    died: list[int] = []
    tensor = torch.empty(8, device="meta")
    storage = raw_storage(tensor)
    key = storage._cdata
    reference = weakref.ref(storage, lambda _: died.append(key))
    del storage
    view = tensor[2:].detach()
    del tensor
    if died or reference() is None:
        return ["a storage's Python object does not outlive its last Python reference"]
    if raw_storage(view)._cdata != key:
        return ["a view does not report the storage of its base"]
    del view
    gc.collect(0) if not died else None
    return [] if died == [key] else ["a storage's weak reference does not fire when its last tensor dies"]


def _node_is_known_in_backward() -> list[str]:
    seen: list[tuple[int, bool]] = []
    leaf = torch.ones(2, requires_grad=True)
    product = leaf * 2
    hook: Any = product.register_hook
    hook(lambda _: seen.append((current_graph_task_id(), current_node() is not None)))
    backward: Any = product.sum().backward
    backward()
    if not seen or seen[0][0] < 0:
        return ["the running backward pass cannot be told from forward (torch._C._current_graph_task_id)"]
    return [] if current_graph_task_id() == -1 else ["a finished backward pass still counts as running"]
