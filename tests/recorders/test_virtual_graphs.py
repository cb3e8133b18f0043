"""CUDA graphs, memory pools and compiled code on the virtual GPU."""

import pytest
import torch
from oomdoc.recorders.virtual.compiled import FUSED
from oomdoc.recorders.virtual.device import format_size
from oomdoc.recorders.virtual.session import Session
from torch import nn

MIB = 1 << 20


def test_a_captured_graph_keeps_its_memory_to_itself(gpu: Session) -> None:
    x = torch.zeros(1024, 1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = (x + 1).relu()
    assert not torch.cuda.is_current_stream_capturing()
    reserved = torch.cuda.memory_reserved()
    graph.replay()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved  # the intermediate's block belongs to the graph
    pools = {segment.pool_id for segment in gpu.device.allocators[0].segments()}
    assert graph.pool() in pools
    del y
    graph.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved


def test_graphed_callables_train(gpu: Session) -> None:
    model = nn.Linear(64, 64, device="cuda")
    sample = torch.zeros(8, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    out = graphed(torch.zeros(8, 64, device="cuda", requires_grad=True))
    out.sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.is_cuda


def test_a_memory_pool_routes_its_allocations(gpu: Session) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    y = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    segments = list(gpu.device.allocators[0].segments())
    assert {segment.pool_id for segment in segments} == {(0, 0), pool.id}
    del x, y
    torch.cuda.empty_cache()
    assert [segment.pool_id for segment in gpu.device.allocators[0].segments()] == [pool.id]
    assert pool.use_count() == 1
    del pool
    assert torch.cuda.memory_reserved() == 0


def test_compile_is_modelled_and_noted(gpu: Session) -> None:
    model = nn.Linear(4, 4, device="cuda")
    compiled = torch.compile(model)
    assert compiled._orig_mod is model
    assert not hasattr(nn.Linear(1, 1), "_orig_mod")

    @torch.compile(mode="max-autotune")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.jit.script
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    model.compile()
    assert triple(double(compiled(torch.zeros(2, 4, device="cuda")))).is_cuda
    assert gpu.notes[FUSED] == 3


def test_an_out_of_memory_counts_the_free_blocks_of_private_pools_as_allocated(gpu: Session) -> None:
    """As PyTorch's message does, and it names a limit that the script has set."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    del inside
    torch.cuda.set_per_process_memory_fraction(0.5)
    allowed = torch.cuda.get_device_properties(0).total_memory // 2
    held = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(allowed, dtype=torch.uint8, device="cuda")
    text = str(caught.value)
    assert f"{format_size(allowed)} allowed; Of the allocated memory 40.00 MiB is allocated by PyTorch, with " in text
    assert "with 30.00 MiB allocated in private pools (e.g., CUDA Graphs), and 0 bytes is reserved by PyTorch" in text
    assert held.numel() == 10 * MIB
