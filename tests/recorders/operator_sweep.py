"""Every operator of torch's own test database on virtual tensors, forward and backward; prints what came of it as JSON.

    python operator_sweep.py [PART OF A NAME]

Each sample runs on the CPU first; the virtual GPU must give results of the same shape, type and strides and gradients
for the same operands, or stop with its own message. A process of its own: torch's test suite changes settings.
"""

import itertools
import json
import sys
import types
import unittest
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from oomdoc.recorders.errors import UnsupportedOperationError
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import virtual_session
from oomdoc.recorders.virtual.storages import RECORDS, storage_key
from torch.utils._pytree import tree_flatten, tree_map

SAMPLES = 3
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.bfloat16)
CARD = GpuTarget(
    name="test-gpu",
    total_bytes=40 << 30,
    context_bytes=500 << 20,
    sm_count=108,
    threads_per_sm=2048,
    compute_capability=(8, 0),
)
Found = dict[str, dict[str, str]]
Case = tuple[str, Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]]


def cases(part: str) -> Iterator[Case]:
    """(name, operator, first operand, more of them, keywords), on the CPU."""
    expecttest = types.ModuleType("expecttest")
    expecttest.TestCase = unittest.TestCase  # type: ignore[attr-defined]  # all that the databases ask of it
    sys.modules.setdefault("expecttest", expecttest)
    from torch.testing._internal import common_methods_invocations as database

    for operator in database.op_db:
        if part not in operator.formatted_name:
            continue
        dtype = next((each for each in DTYPES if each in operator.dtypes), None)
        if dtype is None:
            continue
        differentiable = operator.supports_autograd and dtype.is_floating_point
        try:
            samples = list(
                itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=differentiable), SAMPLES)
            )
        except ImportError:  # scipy makes some of them
            continue
        yield from ((operator.formatted_name, operator, each.input, each.args, each.kwargs) for each in samples)
    foreach = [db for name, db in vars(database).items() if name.startswith("foreach_") and name.endswith("_op_db")]
    for operator in itertools.chain(*foreach):
        if part in operator.name and torch.float32 in operator.dtypes:
            samples = itertools.islice(operator.sample_inputs("cpu", torch.float32, noncontiguous=False), SAMPLES)
            yield from (
                (operator.name, operator.method_variant, each.input, each.args, each.kwargs) for each in samples
            )


def tensors(nest: Any) -> list[torch.Tensor]:
    return [each for each in tree_flatten(nest)[0] if isinstance(each, torch.Tensor)]


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tuple(tensor.shape), str(tensor.dtype), strides, tensor.requires_grad


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def moved(value: Any) -> Any:
    """To the GPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cuda().requires_grad_(value.requires_grad)
    return torch.device("cuda") if isinstance(value, torch.device) or value == "cpu" else value


def expected(case: Case) -> list[tuple[Any, ...]] | None:
    """What the CPU gives; None where it refuses."""
    _, operator, x, args, kwargs = case
    torch.manual_seed(0)
    try:
        return [form(each) for each in tensors(operator(*tree_map(copied, (x, *args)), **tree_map(copied, kwargs)))]
    except Exception:
        return None


def judge(case: Case, wanted: list[tuple[Any, ...]]) -> tuple[str, str]:
    """(verdict, detail): alike, stopped, raised, differs, off the GPU, not counted."""
    _, operator, x, args, kwargs = case
    operands, keywords = tree_map(moved, (x, *args)), tree_map(moved, kwargs)
    try:
        results = tensors(operator(*operands, **keywords))
        if (got := [form(each) for each in results]) != wanted:
            return "differs", f"{wanted} became {got}"
        if any(each.device.type != "cuda" for each in results):
            return "off the GPU", str([str(each.device) for each in results])
        if not all(map(is_counted, results)):
            return "not counted", str(wanted)
        return gradients(results, [each for each in tensors((operands, keywords)) if each.requires_grad])
    except UnsupportedOperationError as error:
        return "stopped", error.operation if error.file and error.line and error.hint else f"no line or hint: {error}"
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}".splitlines()[0]


def is_counted(tensor: torch.Tensor) -> bool:
    """Whether the allocator has a block for it."""
    if tensor.layout is not torch.strided or not tensor.untyped_storage().nbytes():
        return True
    record = RECORDS.get(storage_key(tensor))
    return record is not None and record.address != 0


def gradients(results: list[torch.Tensor], leaves: list[torch.Tensor]) -> tuple[str, str]:
    roots = [each for each in results if each.requires_grad]
    if not roots or not leaves:
        return "alike", ""
    grads = torch.autograd.grad(roots, leaves, [torch.ones_like(each) for each in roots], allow_unused=True)
    for grad, leaf in zip(grads, leaves, strict=True):
        if grad is not None and (grad.shape, grad.dtype, grad.device) != (leaf.shape, leaf.dtype, leaf.device):
            return "differs", f"gradient {tuple(grad.shape)} {grad.dtype} {grad.device} of {tuple(leaf.shape)}"
        if grad is not None and not is_counted(grad):
            return "not counted", f"gradient of {tuple(leaf.shape)}"
    return "alike", ""


def main() -> None:
    warnings.simplefilter("ignore")
    every = [(case, expected(case)) for case in cases(sys.argv[1] if len(sys.argv) > 1 else "")]
    found: Found = defaultdict(dict)
    count = 0
    with virtual_session(CARD):
        for case, wanted in every:
            if wanted is None:
                continue
            count += 1
            verdict, detail = judge(case, wanted)
            if verdict != "alike":
                found[verdict][case[0]] = detail
    print(json.dumps({"samples": count, **found}))  # noqa: T201  (for the test)


if __name__ == "__main__":
    main()
