"""Private names of torch that the bookkeeping of the virtual GPU stands on; what a shim replaces stands in the shim.

A torch without one of them fails at the import. `problems()` checks at the start of a session that those
behave on which every number rests, so that a new torch can never make wrong ones.
"""

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

TRIED_VERSIONS = ("2.13.0",)

_BASE: Any = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase

# the C++ answers, untouched by the class-level overrides of `face`
raw_device: Callable[[torch.Tensor], torch.device] = _BASE.device.__get__
raw_is_meta: Callable[[torch.Tensor], bool] = _BASE.is_meta.__get__
raw_storage: Callable[[torch.Tensor], torch.UntypedStorage] = _BASE.untyped_storage

is_functorch_wrapper: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
functorch_inner: Callable[[torch.Tensor], torch.Tensor] = torch._C._functorch.get_unwrapped

# which node of which backward pass runs on this thread; -1 = none
current_graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
current_node: Callable[[], Any] = torch._C._current_autograd_node
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
after_backward: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback

# reference counts that decide whether the engine may accumulate in place (engine.py)
storage_use_count: Callable[[int], int] = torch._C._storage_Use_Count
tensor_use_count: Callable[[torch.Tensor], int] = _BASE._use_count

# indexing, which older torch did otherwise (older_torch.py)
raw_getitem: Callable[[torch.Tensor, Any], torch.Tensor] = _BASE.__getitem__

# modes
no_dispatch: Callable[[], Any] = torch._C._DisableTorchDispatch
get_dispatch_mode: Callable[[Any], Any] = torch._C._get_dispatch_mode
FAKE_MODE_KEY: Any = torch._C._TorchDispatchModeKey.FAKE

# the dispatcher
has_kernel_for: Callable[[str, Any], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
COMPOSITE_IMPLICIT = "CompositeImplicitAutograd"


def open_composite(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the C++ body of a composite; `func.decompose` would prefer Python ones, which copy where C++ aliases."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _absent(*args: Any) -> Any:
    raise NotImplementedError("this torch has no flex_attention")


_flex: Any = sys.modules.get("torch._higher_order_ops.flex_attention")  # `import torch` loads it
flex_operator: Any = getattr(_flex, "flex_attention", None)
flex_scores: Callable[..., Any] = getattr(_flex, "_math_attention_inner", None) or _absent
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
    return tuple(
        problem for check in (_storage_dies_with_last_reference, _node_is_known_in_backward) for problem in check()
    )


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
