"""The simulated GPUs as `torch.cuda` asks for them: stats of the allocators, properties of the target."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...allocator.machine import Allocator

if TYPE_CHECKING:
    from .session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """`torch.cuda.get_device_properties`: what is known of the simulated GPU."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    L2_cache_size: int = 0
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 101376
    shared_memory_per_multiprocessor: int = 102400
    max_threads_per_block: int = 1024
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""  # noqa: N815  # torch's own name
    uuid: str = "00000000-0000-0000-0000-000000000000"
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @property
    def multiProcessorCount(self) -> int:  # noqa: N802  # torch's own second name
        return self.multi_processor_count


class SimulatedGpus:
    """`cuda_module.Gpus` over the virtual device of a session."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._device = session.device
        self._fractions = [1.0] * session.device.count

    def count(self) -> int:
        return self._device.count

    def properties(self, index: int) -> DeviceProperties:
        target = self._device.target
        return DeviceProperties(
            name=target.title or target.name,
            major=target.compute_capability[0],
            minor=target.compute_capability[1],
            total_memory=target.total_bytes,
            multi_processor_count=target.sm_count,
            max_threads_per_multi_processor=target.threads_per_sm,
        )

    def _allocator(self, index: int) -> Allocator:
        return self._device.allocators[index]

    def memory_stats(self, index: int) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for key, value in self._allocator(index).memory_stats().items():
            level = nested
            *path, leaf = key.split(".")
            for part in path:
                level = level.setdefault(part, {})
            level[leaf] = value
        return nested

    def reset_peak(self, index: int) -> None:
        self._allocator(index).reset_peak()

    def reset_accumulated(self, index: int) -> None:
        self._allocator(index).reset_accumulated()

    def empty_cache(self) -> None:
        """On every device, as torch._C._cuda_emptyCache does."""
        for allocator in self._device.allocators:
            allocator.empty_cache()

    def set_memory_fraction(self, fraction: float, index: int) -> None:
        self._fractions[index] = fraction
        self._allocator(index).set_memory_fraction(fraction)

    def memory_fraction(self, index: int) -> float:
        return self._fractions[index]

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return self._allocator(index).heap.driver.free_bytes(), self._device.target.total_bytes

    def snapshot(self) -> dict[str, Any]:
        if self._session.take_snapshot is None:
            raise RuntimeError("oomdoc: this session records no events: torch.cuda.memory_snapshot has nothing to tell")
        return self._session.take_snapshot()

    def raw_alloc(self, size: int, stream: int, index: int) -> int:
        return self._device.malloc(size, index, stream)

    def raw_delete(self, address: int) -> None:
        for allocator in self._device.allocators:
            try:
                allocator.block_size(address)
            except KeyError:
                continue
            allocator.free(address)
            return
        raise RuntimeError(f"invalid device pointer: {address:#x}")

    def set_allocator_settings(self, settings: str) -> None:
        self._session.note(f"allocator settings changed while running were not applied: {settings}")

    def clear_workspaces(self) -> None:
        """torch._C._cuda_clearCublasWorkspaces."""
        self._session.tracker.release_handles()

    def note(self, text: str) -> None:
        self._session.note(text)
