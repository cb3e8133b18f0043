"""Where autograd works in place on CUDA, and out of place under a dispatch mode: give the result its operand's block.

While any mode is active, autograd takes every tensor for "subclass-like" and avoids in-place operations that it uses
on CUDA (torch/csrc/autograd/input_buffer.cpp and FunctionsManual.cpp, aten/src/ATen/native/Linear.cpp). Three of these
change what is allocated:

* accumulation of the gradients that meet at one node: `old.add_(new)` when nothing else holds `old`;
* formulas that fill a fresh zero tensor: `zeros.scatter_(...)`, `index_put_`, ... come as `scatter`, `index_put`, ...;
* `linear` with a bias and a non-contiguous input: `output.add_(bias)`.

"Nothing else holds it" shows in the reference counts seen inside the handler; their values are measured at start-up
(`calibrate`), not written down.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .private import TorchDispatchMode, current_node, raw_is_meta, raw_storage, storage_use_count, tensor_use_count
from .storages import RECORDS, Kind, StorageRecord, tag_storage

_aten = torch.ops.aten
_ADD = _aten.add.Tensor
_FILLS = frozenset(
    (
        _aten.scatter.src,
        _aten.scatter.value,
        _aten.scatter_add.default,
        _aten.index_put.default,
        _aten.index_add.default,
        _aten.index_copy.default,
        _aten.masked_scatter.default,
        _aten.index_fill.int_Scalar,
    )
)
TRANSFERS = _FILLS | {_ADD}
PRODUCTS = frozenset((_aten.mm.default, _aten.bmm.default, _aten._unsafe_view.default))


@dataclass(frozen=True, slots=True)
class Counts:
    """(tensor, storage) reference counts of an operand inside the handler."""

    accumulated: tuple[int, int]  # the old gradient when only the engine holds it
    linear: tuple[int, int]  # the product inside `linear`
    plain: tuple[int, int]  # an operand that Python holds


def counts(tensor: torch.Tensor) -> tuple[int, int]:
    """How many owners the tensor and its storage have, as seen from a handler."""
    return tensor_use_count(tensor), storage_use_count(raw_storage(tensor)._cdata)


class Engine:
    """One per tracker. `ops` counts operations, so that "the operation just before" can be told."""

    def __init__(self, measured: Counts, on_node: Callable[[int], None] | None = None) -> None:
        self.counts = measured
        self.on_node = on_node  # called with the sequence number of each node that backward comes to
        self._node = -1
        self._node_started_at = 0  # allocations made before the running node began
        self._product = 0  # key of the storage that the operation just before made, if it was a product

    def donor(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], backward: bool) -> StorageRecord | None:
        """The record whose block the result takes over, if CUDA would have worked in place; call it before the op."""
        if func not in TRANSFERS or not args or not isinstance(args[0], torch.Tensor) or not raw_is_meta(args[0]):
            return None
        record = RECORDS.get(raw_storage(args[0])._cdata)
        if record is None or record.kind is not Kind.CUDA or not record.address:
            return None
        if func is not _ADD:
            return record if backward and record.born > self._node_started_at else None
        if kwargs or not isinstance(args[1], torch.Tensor):
            return None
        if backward:
            return record if self._accumulates(record, args[0], args[1]) else None
        return record if self._adds_bias(record, args[0], args[1]) else None

    def done(self, product: Any) -> None:
        """Call it after each operation that allocated, with its result if it is one of `PRODUCTS`."""
        self._product = 0 if product is None else raw_storage(product)._cdata

    def at_node(self, allocations: int) -> None:
        """Call before each operation of a backward pass; `allocations` is the session's count so far."""
        node = current_node()
        number = -1 if node is None else node._sequence_nr()
        if number != self._node:
            self._node = number
            self._node_started_at = allocations
            if self.on_node is not None:
                self.on_node(number)

    def _accumulates(self, record: StorageRecord, old: torch.Tensor, new: torch.Tensor) -> bool:
        return (
            record.born <= self._node_started_at
            and old.shape == new.shape
            and not torch.is_grad_enabled()
            and torch.promote_types(old.dtype, new.dtype) == old.dtype
            and counts(old) <= self.counts.accumulated
            and counts(old)[1] <= self.counts.accumulated[1]
            and _dense(old)
        )

    def _adds_bias(self, record: StorageRecord, product: torch.Tensor, bias: torch.Tensor) -> bool:
        return (
            record.key == self._product
            and bias.dim() == 1
            and bias.shape[0] == product.shape[-1]
            and bias.dtype == product.dtype
            and self.counts.linear != self.counts.plain
            and counts(product) == self.counts.linear
        )


def transfer(donor: StorageRecord, result: torch.Tensor) -> bool:
    """Let `result`'s storage own the donor's block. False when the sizes differ, and nothing is moved."""
    storage = raw_storage(result)
    if storage.nbytes() != donor.nbytes or storage._cdata in RECORDS:
        return False
    record = tag_storage(storage, Kind.CUDA, donor.index)
    record.address, record.event, record.born = donor.address, donor.event, donor.born
    donor.address = 0
    return True


def _dense(tensor: torch.Tensor) -> bool:
    """Non-overlapping and dense, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


class _Probe(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotations
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.seen: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _ADD:
            self.seen.append(counts(args[0]))
        return func(*args, **kwargs)


def calibrate() -> Counts:
    """Measure the counts on a tiny graph of plain meta tensors; a few milliseconds."""
    with _Probe() as probe:
        leaf = torch.empty(4, 4, device="meta", requires_grad=True)
        branched = leaf * 2
        total = branched * 3 + branched * 4  # seen[0]: an operand held by Python
        torch.autograd.backward(total.sum())  # seen[1]: the two gradients that meet at `branched`
        turned = torch.empty(2, 4, 3, device="meta").transpose(1, 2)
        torch.nn.functional.linear(turned, leaf, leaf[0])  # seen[2]
    if len(probe.seen) != 3:
        return Counts((0, 0), (0, 0), (0, 0))  # never in place: right order, a few more allocations than CUDA
    return Counts(accumulated=probe.seen[1], linear=probe.seen[2], plain=probe.seen[0])
