"""torch.cuda and torch.accelerator answer for the simulated GPU."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oomdoc.recorders.virtual.session import Session, virtual_session
from oomdoc.recorders.virtual.streams import POOL_STREAMS
from oomdoc.snapshots import reader

from .conftest import A100_LIKE


def test_the_target_shows(gpu: Session) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (8, 0)
    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory == A100_LIKE.total_bytes
    assert properties.multi_processor_count == 108
    assert torch.cuda.is_bf16_supported()
    assert torch.version.cuda is not None
    assert torch.backends.cudnn.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_memory_statistics_are_the_allocator_s(gpu: Session) -> None:
    x = torch.zeros(1000, device="cuda")
    allocator = gpu.device.allocators[0]
    assert torch.cuda.memory_allocated() == allocator.allocated_bytes == 4096
    assert torch.cuda.memory_reserved() == allocator.reserved_bytes == 2 << 20
    assert torch.accelerator.memory_allocated() == 4096
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == 4096
    assert stats["segment.small_pool.current"] == 1
    assert stats["num_ooms"] == 0
    assert "4096 B" in torch.cuda.memory_summary()
    free, total = torch.cuda.mem_get_info()
    assert total == A100_LIKE.total_bytes
    assert free == A100_LIKE.capacity_bytes - (2 << 20)
    del x
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_what_is_free_is_whole_granules_of_the_driver() -> None:
    """Whatever total and context are; and total, outside and free of the recording add up."""
    odd = replace(A100_LIKE, total_bytes=42405855232 + 12345, context_bytes=522190848 + 7)
    with virtual_session(odd) as session:
        torch.zeros(1000, device="cuda")
        free, total = torch.cuda.mem_get_info()
        recording = session.snapshot().recording
    assert free % (2 << 20) == 0
    assert total == odd.total_bytes
    assert 0 <= odd.total_bytes - odd.context_bytes - (2 << 20) - free < 2 << 20
    assert recording is not None
    assert recording.capacity_bytes == total
    assert recording.outside_bytes == total - free - (2 << 20)


def test_a_script_s_own_snapshot_is_the_recording(gpu: Session, tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.zeros(1000, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    last = snapshot["device_traces"][0][-1]
    assert (last["action"], last["size"], last["addr"]) == ("alloc", 4000, x.data_ptr())
    assert last["frames"][0]["name"] == "test_a_script_s_own_snapshot_is_the_recording"
    assert [segment["total_size"] for segment in torch.cuda.memory_snapshot()] == [2 << 20]
    torch.cuda.memory._dump_snapshot(str(tmp_path / "own.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    read = reader.load(tmp_path / "own.pickle")
    assert read.devices[0].trace.size.tolist()[-1] == 4000


def test_a_memory_fraction_limits(gpu: Session) -> None:
    torch.cuda.set_per_process_memory_fraction(0.25)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(A100_LIKE.total_bytes // 2, dtype=torch.uint8, device="cuda")


def test_visible_devices_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_session(A100_LIKE, device_count=4):
        assert torch.cuda.device_count() == 4
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
        assert torch.cuda.device_count() == 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert not torch.cuda.is_available()


def test_seeds_and_states(gpu: Session) -> None:
    torch.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    state = torch.cuda.get_rng_state()
    assert (state.numel(), state.dtype) == (16, torch.uint8)
    torch.cuda.manual_seed_all(8)
    torch.cuda.set_rng_state(state)
    assert torch.cuda.initial_seed() == 7
    generator = torch.Generator("cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    assert torch.randn(3, device="cuda", generator=generator).is_cuda
    assert torch.randperm(3, device="cuda", generator=generator).is_cuda
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(1)
    assert torch.cuda.initial_seed() == 7


def test_an_allocation_belongs_to_the_current_stream(gpu: Session) -> None:
    side = torch.cuda.Stream()
    assert isinstance(side, torch.Stream)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        x = torch.zeros(1000, device="cuda")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    log = gpu.device.logs[0]
    assert log.stream[-1] == side.cuda_stream != 0
    del x
    y = torch.zeros(1000, device="cuda")  # another stream: the freed block is not for it
    assert torch.cuda.memory_reserved() == 4 << 20
    del y


def test_record_stream_delays_the_free(gpu: Session) -> None:
    x = torch.zeros(1000, device="cuda")
    address = x.data_ptr()
    x.record_stream(torch.cuda.Stream())
    del x
    assert gpu.device.allocators[0].allocated_bytes == 0
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 4096
    assert torch.zeros(1000, device="cuda").data_ptr() == address  # the next request finds the work done


def test_streams_come_round_and_events_time(gpu: Session) -> None:
    first = torch.cuda.Stream()
    for _ in range(POOL_STREAMS - 1):
        assert torch.cuda.Stream() != first
    assert torch.cuda.Stream() == first
    assert torch.cuda.Stream(priority=-1).priority == -1
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record(first)
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_a_thread_of_the_script_is_on_the_gpu_too(gpu: Session) -> None:
    made: list[torch.Tensor] = []

    class Worker(threading.Thread):
        def run(self) -> None:
            made.append(torch.zeros(1000, device="cuda"))

    worker = Worker()
    worker.start()
    worker.join()
    assert made[0].is_cuda
    assert torch.cuda.memory_allocated() == 4096


def test_memory_for_other_libraries(gpu: Session) -> None:
    address = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0


def test_nvtx_as_call_and_decorator(gpu: Session) -> None:
    @torch.cuda.nvtx.range("marked")
    def step() -> int:
        return torch.cuda.nvtx.range_push("inner")

    assert step() == 1
    torch.cuda.nvtx.range_pop()
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()


@pytest.fixture
def loader() -> Iterator[object]:
    from torch.utils.data import DataLoader, TensorDataset

    with virtual_session(A100_LIKE):
        data = TensorDataset(torch.arange(64.0).reshape(64, 1), torch.arange(64))
        yield DataLoader(data, batch_size=16, num_workers=2, pin_memory=True)


def test_workers_load_real_data_into_pinned_memory(loader: object) -> None:
    batches = list(loader)  # type: ignore[call-overload]
    assert [batch[1][0].item() for batch in batches] == [0, 16, 32, 48]
    assert all(each.is_pinned() for batch in batches for each in batch)
    assert batches[0][0].to("cuda", non_blocking=True).is_cuda
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == 512


def test_a_loader_s_worker_has_no_gpu() -> None:
    from torch.utils.data import DataLoader, Dataset

    class OnGpu(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.zeros(1).cuda()

    with (
        virtual_session(A100_LIKE),
        pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"),
    ):
        list(DataLoader(OnGpu(), num_workers=1))


def test_a_kernel_from_source_runs_on_tensors_of_the_script_and_allocates_nothing(gpu: Session) -> None:
    cuda: Any = torch.cuda
    kernel = cuda._compile_kernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
    x = torch.ones(32, device="cuda")
    before = torch.cuda.memory_allocated()
    assert kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[x, 32]) is None
    assert torch.cuda.memory_allocated() == before == torch.cuda.max_memory_allocated()
    with pytest.raises(ValueError, match="must be CUDA tensors"):
        kernel(args=[torch.ones(32)])
