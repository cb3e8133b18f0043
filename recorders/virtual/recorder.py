"""The virtual GPU as the recorder of a rank."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...allocator.config import AllocatorConfig, parse, text_in
from ...configs import loader
from ...configs.defaults import DEFAULT_GPU
from ..channel import VARIABLE, Speaker
from ..hooks import Hooks
from ..launch import RunSpec
from ..mailbox import FOLDER, Mailbox
from ..recorder import Taken
from ..script import LAUNCHER_CODES
from .device import GpuTarget
from .session import Session, virtual_session


@dataclass
class VirtualRecorder:
    session: Session
    text: str  # the allocator's settings
    config: AllocatorConfig

    @property
    def hooks(self) -> Hooks:
        return self.session.hooks

    def snapshot(self, argv: Sequence[str]) -> Taken:
        self._ask_for_the_last()
        return Taken(self.session.snapshot(argv, settings_of(self.text, self.config)))

    def read_settings(self) -> AllocatorConfig | None:
        """What the script has put into its environment before it used the GPU; None where that changes nothing."""
        text = text_in(os.environ)
        if text == self.text:
            return None
        self.text, self.config = text, parse(text)
        return self.config

    def _ask_for_the_last(self) -> None:
        """Where a parameter is not divided evenly, the last rank of its mesh holds the least."""
        session = self.session
        last = last_of_uneven(session.hooks.live_roots())
        if last is not None and last != session.rank:
            session.note(f"shards are uneven: rank {last}, which holds the least, differs from the others")
            session.mailbox.peer(last)

    def out_of_memory_at_end(self) -> bool:
        """The step in which a device was last out of memory never came to its end."""
        session = self.session
        for log, marks in zip(session.device.logs, session.roles.marks, strict=True):
            last = max((i for i in log.free_bytes_at_oom), default=-1)
            step = max((mark.step for mark in marks if mark.event <= last), default=1)
            if last >= 0 and self.hooks.completed < step:
                return True
        return False

    def busy(self) -> bool:
        return self.session.device.lock.locked()

    def allocated(self) -> tuple[int, int, int]:
        allocators = self.session.device.allocators
        now = max(each.allocated_bytes for each in allocators)
        peak = max(each.peak_allocated_bytes for each in allocators)
        return now, peak, sum(map(len, self.session.device.logs))

    def room(self) -> tuple[int, int, int] | None:
        fullest = max(self.session.device.allocators, key=lambda each: each.reserved_bytes)
        return fullest.reserved_bytes, fullest.heap.driver.free_bytes(), self.session.target.total_bytes

    def assumed_reads(self) -> tuple[tuple[str, int], ...]:
        return tuple(self.session.assumed_reads)


def last_of_uneven(modules: Sequence[torch.nn.Module]) -> int | None:
    """The last rank of a mesh over which a parameter is sharded that its size cannot be divided by."""
    for parameter in (each for module in modules for each in module.parameters()):
        mesh: Any = getattr(parameter, "device_mesh", None)
        placements: Any = getattr(parameter, "placements", ())
        for dimension, placement in enumerate(placements):
            if mesh is not None and placement.is_shard() and parameter.shape[placement.dim] % mesh.size(dimension):
                return int(mesh.mesh.max())
    return None


def _mailbox(spec: RunSpec, rank: int) -> Mailbox:
    if not spec.others:
        return Mailbox(rank)
    return Mailbox(rank, spec.run_dir / FOLDER, Speaker(os.environ.get(VARIABLE)).say)


def target_of(
    name: str,
    capacity_bytes: int | None = None,
    context_bytes: int | None = None,
    torch_version: tuple[int, int] | None = None,
) -> GpuTarget:
    """The card of configs/gpus.yaml; `capacity_bytes` replaces its total, `context_bytes` its context."""
    spec = loader.gpu(name)
    return GpuTarget(
        name=spec.name,
        total_bytes=capacity_bytes or spec.total_bytes,
        context_bytes=spec.context_bytes if context_bytes is None else context_bytes,
        sm_count=spec.sm_count,
        threads_per_sm=spec.threads_per_sm,
        compute_capability=spec.compute_capability,
        title=spec.title,
        torch_version=torch_version,
        flops=spec.flops.get("fp32", 0.0),
        memory_bandwidth=spec.memory_bandwidth,
    )


@contextmanager
def virtual_recorder(spec: RunSpec, rank: int, *, steps: int | None) -> Iterator[VirtualRecorder]:
    text = text_in(os.environ)
    config = parse(text)
    with virtual_session(
        target_of(spec.gpu or DEFAULT_GPU, spec.capacity_bytes, spec.context_bytes, spec.target_torch),
        device_count=spec.nproc_per_node,
        config=config,
        rank=rank,
        world_size=spec.world_size,
        steps=steps,
    ) as session:
        session.mailbox = _mailbox(spec, rank)
        for code in LAUNCHER_CODES:
            session.device.stacks.stop_at(code)
        recorder = VirtualRecorder(session, text, config)
        session.device.settings = recorder.read_settings
        yield recorder


def settings_of(text: str, config: AllocatorConfig) -> dict[str, object]:
    """`allocator_settings` of the snapshot, as PyTorch writes them."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": text,
        "max_split_size": -1 if config.max_split_size is None else config.max_split_size,
        "garbage_collection_threshold": config.garbage_collection_threshold,
        "expandable_segments": config.expandable_segments,
        "roundup_power2_divisions": {str(1 << bucket): each for bucket, each in enumerate(config.roundup_divisions)},
    }
