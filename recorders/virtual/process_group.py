"""A process group of one process: every other rank is taken to hold what this one holds.

Collectives on virtual tensors change nothing and allocate what NCCL's own wrapper allocates
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp): the variants that take lists of tensors go through one flat tensor
of the whole group's size. Collectives on real host tensors give the values that follow from the assumption.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .face import canonical_device
from .nccl import connects
from .private import finished_work, raw_is_meta
from .shadows import tell
from .storages import is_virtual

if TYPE_CHECKING:
    from .session import Session

SMALL_MESSAGE = 1024  # elements of an integer tensor that a script may decide by
_Tensors = Sequence[torch.Tensor]


def _done(result: object) -> Any:
    """A finished Work with `result` as the value of its future."""
    future: torch.futures.Future[object] = torch.futures.Future()
    future.set_result(result)
    return finished_work(future)


def _flat(tensors: _Tensors) -> torch.Tensor | None:
    """What NCCL's list variants allocate: one tensor for all of `tensors`, if they are of one size on the GPU."""
    first = tensors[0]
    if len(tensors) < 2 or not is_virtual(first) or any(t.shape != first.shape for t in tensors):
        return None
    return torch.empty((len(tensors), *first.shape), dtype=first.dtype, device=first.device)


class _Peers:
    session: "Session | None" = None  # told of the ranks that messages go to and come from


peers = _Peers()
_Base: Any = dist.ProcessGroup  # its stubs name C++ parameters that Python callers never use


class VirtualGroup(_Base):  # type: ignore[misc]  # as said
    """`size` ranks, of which this process is `rank`."""

    def __init__(self, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, name
        self._description = ""
        self.connected = False  # its communicator was made, or it is no group of NCCL

    # ---- what it is

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "nccl"

    def getBackendName(self) -> str:  # noqa: N802  # torch's own name
        return "nccl"

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def supports_splitting(self) -> bool:
        return False

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def _get_backend(self, device: torch.device) -> Any:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _start_coalescing(self, device: Any = None) -> None:
        return None

    def _end_coalescing(self, device: Any = None) -> Any:
        return _done([])

    def _wait_for_pending_works(self) -> None:
        return None

    def set_timeout(self, timeout: Any) -> None:
        return None

    def _set_default_timeout(self, timeout: Any) -> None:
        return None

    def abort(self) -> None:
        return None

    def shutdown(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"<virtual process group: rank {self._rank} of {self._size}>"

    # ---- collectives

    def _reduce(self, tensors: _Tensors, options: Any) -> None:
        operation = dist.ReduceOp.SUM if options is None else options.reduceOp
        for tensor in tensors:
            if operation == dist.ReduceOp.SUM:
                _settle(tensor, (tensor,), lambda held: held * self._size)
            elif operation == dist.ReduceOp.PRODUCT:
                _settle(tensor, (tensor,), lambda held: held**self._size)

    @connects
    def allreduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        self._reduce(tensors, opts)
        return _done(list(tensors))

    @connects
    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    @connects
    def reduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        if getattr(opts, "rootRank", self._rank) == self._rank:
            self._reduce(tensors, opts)
        return _done(list(tensors))

    @connects
    def broadcast(self, tensors: _Tensors, opts: Any = None) -> Any:
        return _done(list(tensors))

    @connects
    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        for parts, own in zip(outputs, inputs, strict=True):
            flat = _flat(parts)
            _copy_each(parts, own)
            del flat
        return _done(list(outputs))

    @connects
    def allgather_coalesced(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        for parts in outputs:
            for part, own in zip(parts, inputs, strict=True):
                _copy_each([part], own)
        return _done(list(outputs))

    @connects
    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        _settle(output, (own,), lambda held: held.reshape(1, -1).expand(self._size, -1).reshape(output.shape))
        return _done([output])

    @connects
    def all_gather_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Any:
        for output, own in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, own)
        return _done(list(outputs))

    @connects
    def reduce_scatter(self, outputs: _Tensors, inputs: Sequence[_Tensors], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=True):
            flat = _flat(parts)
            _copy_each([output], parts[self._rank])
            del flat
        self._reduce(outputs, opts)
        return _done(list(outputs))

    @connects
    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Any:
        _settle(output, (whole,), lambda held: held.reshape(self._size, -1)[self._rank].view(output.shape))
        self._reduce([output], opts)
        return _done([output])

    @connects
    def reduce_scatter_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Any:
        for output, whole in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, whole, opts)
        return _done(list(outputs))

    @connects
    def gather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        for parts, own in zip(outputs, inputs, strict=False):
            _copy_each(parts, own)
        return _done(list(outputs))

    @connects
    def scatter(self, outputs: _Tensors, inputs: Sequence[_Tensors], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=False):
            _copy_each([output], parts[self._rank])
        return _done(list(outputs))

    @connects
    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Any:
        """Each rank sends this one what this one would send to itself."""
        for output in outputs:
            _copy_each([output], inputs[self._rank])
        return _done(list(outputs))

    @connects
    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: Any = None,
        input_sizes: Any = None,
        opts: Any = None,
    ) -> Any:
        """As `alltoall`; where sizes were given, only the own part can be said to be right."""
        if not output_sizes and not input_sizes:
            size = self._size
            _settle(output, (whole,), lambda held: _repeated(held, self._rank, size).view(output.shape))
        else:
            _settle(output, (), lambda: None)
        return _done([output])

    @connects
    def send(self, tensors: _Tensors, destination: int, tag: int = 0) -> Any:
        if peers.session is not None:
            peers.session.mailbox.tensor_sent(dist.get_global_rank(self, destination))
        return _done(list(tensors))

    @connects
    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> Any:
        """What arrives is not known; a few integers stay what they are: the other rank holds what this one does."""
        if peers.session is not None:
            peers.session.mailbox.tensor_received(dist.get_global_rank(self, source))
        for tensor in tensors:
            if raw_is_meta(tensor) and (tensor.is_floating_point() or tensor.numel() > SMALL_MESSAGE):
                _settle(tensor, (), lambda: None)
        return _done(list(tensors))

    @connects
    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> Any:
        return _done(list(tensors))

    def barrier(self, opts: Any = None) -> Any:
        """NCCL's barrier is an all-reduce of one float on the device."""
        cuda: Any = torch.cuda
        if cuda.is_initialized():
            torch.zeros(1, device=canonical_device("cuda"))
        return _done([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        return None

    # the names of these collectives in torch before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _repeated(whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """The part of `whole` that goes to `rank`, once from each rank."""
    return whole.reshape(size, -1)[rank].repeat(size)


def _copy_each(parts: _Tensors, own: torch.Tensor) -> None:
    """What the other ranks hold is what this one does; of another shape, nobody knows it."""
    for part in parts:
        if part.shape == own.shape:
            _settle(part, (own,), lambda held: held)
        else:
            _settle(part, (), lambda: None)


def _settle(output: torch.Tensor, held: _Tensors, result: Callable[..., torch.Tensor | None]) -> None:
    """Write what `result` makes of the values of `held` to `output`, on the host or in the shadow of a GPU tensor.

    Where the values of one are not known, those of a GPU output are not either; a real tensor keeps what it holds.
    """
    if not output.numel():
        return
    if raw_is_meta(output):
        tell(output, held, result)
    elif not any(raw_is_meta(each) for each in held):
        value = result(*held)
        if value is not None:
            output.copy_(value)
