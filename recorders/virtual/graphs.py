"""CUDA graphs and memory pools: captured work runs eagerly, its memory comes from a private pool of the allocator.

What a capture allocates and frees stays in the graph's pool until the graph is reset, as in
c10/cuda/CUDACachingAllocator.cpp; a replay allocates nothing.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .patching import patches
from .private import C
from .streams import current_stream_handle, selected

if TYPE_CHECKING:
    from .session import Session

PoolId = tuple[int, int]
_graph_ids = itertools.count(1)  # (n, 0): pools of graphs without a handle
_user_ids = itertools.count(1)  # (0, n): torch.cuda.MemPool and graph_pool_handle (MemPool::graph_pool_handle)


class _Captures:
    """Graphs that are capturing now, over all devices."""

    active = 0


def _graph_class(session: "Session") -> type:
    class CUDAGraph:
        """`torch.cuda.CUDAGraph` of the virtual GPU."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._pool: PoolId | None = None
            self._index = 0
            self._captured = False

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
            if self._captured:
                raise RuntimeError("This CUDAGraph instance already owns a captured graph: reset() it first")
            self._index = selected.device
            self._pool = tuple(pool) if pool is not None else (next(_graph_ids), 0)
            handle = current_stream_handle(self._index)
            allocator = session.device.allocators[self._index]
            allocator.begin_allocate_to_pool(self._pool, lambda stream: stream == handle)
            _Captures.active += 1

        def capture_end(self) -> None:
            if self._pool is None:
                raise RuntimeError("capture_end() called before capture_begin()")
            session.device.allocators[self._index].end_allocate_to_pool(self._pool)
            _Captures.active -= 1
            self._captured = True

        def instantiate(self) -> None:
            return None

        def replay(self) -> None:
            if not self._captured:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")

        def reset(self) -> None:
            if self._captured and self._pool is not None:
                session.device.allocators[self._index].release_pool(self._pool)
            self._captured = False

        def pool(self) -> PoolId:
            if self._pool is None:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
            return self._pool

        def enable_debug_mode(self) -> None:
            return None

        def debug_dump(self, debug_path: str) -> None:
            return None

        def raw_cuda_graph(self) -> int:
            raise RuntimeError("oomdoc: the virtual GPU has no cudaGraph_t to give (CUDAGraph.raw_cuda_graph)")

        def __del__(self) -> None:
            self.reset()

    CUDAGraph.__module__ = "torch.cuda.graphs"
    return CUDAGraph


def _pool_class(session: "Session") -> type:
    class MemPool:
        """`torch.cuda.MemPool`: `use_mem_pool` routes to it; what it holds goes back to the driver when it dies."""

        def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
            if allocator is not None:
                raise RuntimeError(
                    "oomdoc: the virtual GPU simulates PyTorch's allocator, not a custom one of a MemPool"
                )
            if use_on_oom or no_split:
                session.note("torch.cuda.MemPool: use_on_oom and no_split were not applied")
            self._allocator = session.device.allocators[selected.device]
            self.id: PoolId = (0, next(_user_ids))
            self._allocator.hold_pool(self.id)

        def use_count(self) -> int:
            return self._allocator.pool_users(self.id)

        def snapshot(self, include_traces: bool = True) -> Any:
            memory: Any = torch.cuda.memory
            return memory.memory_snapshot(self.id)

        def __del__(self) -> None:
            if not hasattr(self, "id"):
                return
            self._allocator.release_pool(self.id)
            lock = session.device.lock
            if lock.acquire(
                blocking=False
            ):  # else in the middle of a request: its retry, or the next, empties the pool
                try:
                    self._allocator.empty_pool(self.id)
                finally:
                    lock.release()

    MemPool.__module__ = "torch.cuda.memory"
    return MemPool


def _pool_functions(session: "Session") -> dict[str, Callable[..., None]]:
    def begin(index: int, pool: PoolId) -> None:
        session.device.allocators[index].begin_allocate_to_pool(pool)

    def end(index: int, pool: PoolId) -> None:
        session.device.allocators[index].end_allocate_to_pool(pool)

    def release(index: int, pool: PoolId) -> None:
        session.device.allocators[index].release_pool(pool)

    return {
        "_cuda_beginAllocateCurrentThreadToPool": begin,
        "_cuda_beginAllocateToPool": begin,
        "_cuda_endAllocateToPool": end,
        "_cuda_releasePool": release,
    }


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """CUDA graphs and memory pools of torch.cuda for the time of the block."""
    graphs: Any = torch.cuda.graphs
    memory: Any = torch.cuda.memory
    with patches() as held:
        held.swap_everywhere(
            [(torch.cuda.CUDAGraph, _graph_class(session)), (torch.cuda.MemPool, _pool_class(session))]
        )
        held.set(graphs, "_cuda_isCurrentStreamCapturing", lambda: _Captures.active > 0)
        held.set(graphs, "_graph_pool_handle", lambda: (0, next(_user_ids)))
        held.set(graphs.graph, "default_capture_stream", None)
        for name, function in _pool_functions(session).items():
            held.set(C, name, function)
            held.set(memory, name, function)
        yield
