"""A real GPU as the recorder of a rank: PyTorch's own memory history, with the hooks' steps, modules and roles."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..diagnosers.interface import CATEGORIES
from ..errors import OomdocError
from ..snapshots import reader
from ..snapshots.model import DeviceRecording, DeviceSnapshot, Recording, Snapshot
from ..snapshots.recording import SCHEMA
from ..snapshots.unpickler import collector_paused
from . import nvml
from .accelerator import Accelerator, Counted, StackKind, accelerator
from .batches import Batches
from .facts import describe
from .hooks import Hooks, living
from .placing import Ambiguous, modules_of, place
from .recorder import Taken
from .role_log import DeviceLog, RoleLog
from .script import LAUNCHER_FILE, is_recorder
from .uploading import faults_told

MAX_ENTRIES = 300_000  # of the ring, per device: some 50 steps of a GPT-2, and 200 MB of the host
# cuBLAS's own workspace as torch asks for it (CUDABlas: 2 x 4096 + 8 x 16 KiB; 32 MiB from sm_90 on): made in a
# forward, kept for the process.
CUBLAS_BYTES = frozenset({8_519_680, 33_554_432})
HALF_BYTES = 2
_TRIES = 3


class CudaRecorder:
    """`rank` and `world_size` are the job's; `on_oom` is called before an out-of-memory error comes to the script."""

    def __init__(
        self,
        device: Accelerator,
        *,
        steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self.device = device
        self.rank = rank
        self.world_size = world_size
        self.log = RoleLog(device, max_entries)
        self.hooks = Hooks(self.log, steps)
        self.log.hooks = self.hooks
        self.batches = Batches()
        self.on_oom: Callable[[], None] | None = None
        self.oom_times: list[float] = []  # Unix time of each failure
        self.oom_steps: list[int] = []  # steps completed by then
        self.outside_at_oom: int | None = None
        self._busy = False

    def out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        """The observer. The allocator's locks are free by now (c10/cuda/CUDACachingAllocator.cpp)."""
        self.oom_times.append(time.time())
        self.oom_steps.append(self.hooks.completed)
        self.outside_at_oom = max(0, total - free - self.device.allocated(device)[2])
        if self.on_oom is not None:
            self.on_oom()

    def snapshot(self, argv: Sequence[str]) -> Taken:
        self._busy = True
        try:
            with collector_paused():  # a collection in between would free tensors that were just looked at
                return self._take(argv)
        finally:
            self._busy = False

    def _take(self, argv: Sequence[str]) -> Taken:
        self.log.tell_again()
        self.hooks.mark_everything(living(torch.nn.Module))
        self.log.settle()
        facts = self._facts()
        raw, counted = self._read()
        leave_out_own_frames(raw)
        found = reader.from_dict(raw)
        names = self.hooks.modules
        recorded: dict[int, DeviceRecording] = {}
        problems: dict[str, int] = {}
        odd = Ambiguous(sizes=self._odd_sizes())
        for each in found.devices:
            labels = modules_of(_labels(raw, each), names)
            log = self.log.devices.get(each.device, DeviceLog())
            count = counted.get(each.device, Counted(0, 0))
            by_request = not self.hooks.trains
            placed = place(each, log, count, labels, found.stacks, odd, by_request=by_request)
            recorded[each.device] = placed.recording
            if placed.problem is not None:
                problems[f"device {each.device}: {placed.problem}"] = 1
        ignored = int(getattr(self.device, "ignored", 0))
        if ignored:
            problems["the script's own calls to record a memory history were not passed on"] = ignored
        total, outside, name = self._card(found)
        recording = Recording(
            schema=SCHEMA,
            kind="cuda",
            argv=tuple(argv),
            versions={"torch": str(torch.__version__), "python": platform.python_version()},
            gpu=name,
            capacity_bytes=total,
            outside_bytes=outside,
            rank=self.rank,
            world_size=self.world_size,
            categories=CATEGORIES,
            modules=tuple(names),
            devices=recorded,
            facts=facts,
            fidelity={"assumptions": problems} if problems else {},
        )
        return Taken(replace(found, recording=recording), raw)

    def _read(self) -> tuple[dict[str, Any], dict[int, Counted]]:
        """The events and the counters at one moment; another thread may allocate in between, so look again."""
        before = self._counters()
        for _ in range(_TRIES):
            raw = self.device.snapshot()
            after = self._counters()
            if after == before:
                break
            before = after
        return raw, after

    def _counters(self) -> dict[int, Counted]:
        return {device: self.device.counted(device) for device in self.device.devices()}

    def _facts(self) -> dict[str, object]:
        hooks = self.hooks
        inputs = {**self.log.inputs, **self.batches.shapes}
        return {
            **describe(hooks.live_roots(), hooks.live_optimizers(), self.batches.loader),
            "inputs": [{"shape": list(shape), "dtype": dtype, "count": n} for (shape, dtype), n in inputs.items()],
            "batch": self.batches.current,
            "autocast": hooks.autocast,
            "recomputes": hooks.recomputes,
            "steps": hooks.completed,
            "requests": 0 if hooks.trains else hooks.requests,
            "backwards_per_step": hooks.backwards_per_step,
            "oom_times": list(self.oom_times),
            "cards": self._cards(),
            "holders": self._holders(),
        }

    def _cards(self) -> list[dict[str, object]]:
        found = []
        for device in self.device.devices():
            name, identity = self.device.identity(device)
            found.append({"device": device, "name": name, "uuid": identity})
        return found

    def _holders(self) -> list[dict[str, object]]:
        """Who holds memory of the cards in use, as NVML tells it at this moment; empty where it does not."""
        found = nvml.cards()
        if isinstance(found, str):
            return []
        of_card = {card.uuid.removeprefix("GPU-"): card for card in found}
        holders: list[dict[str, object]] = []
        for device in self.device.devices():
            card = of_card.get(self.device.identity(device)[1].removeprefix("GPU-"))
            for each in card.holders if card is not None else ():
                own = each.pid == os.getpid()
                holders.append(
                    {"device": device, "pid": each.pid, "name": each.name, "bytes": each.used_bytes, "own": own}
                )
        return holders

    def _odd_sizes(self) -> frozenset[int]:
        """Under autocast a weight's copy looks like an activation of its size."""
        if self.hooks.autocast is None:
            return CUBLAS_BYTES
        weights = {
            parameter.numel() * HALF_BYTES for root in self.hooks.live_roots() for parameter in root.parameters()
        }
        return CUBLAS_BYTES | weights

    def _card(self, found: Snapshot) -> tuple[int | None, int | None, str | None]:
        """Of the fullest device: its bytes, those outside the allocator, its name."""
        device = self._fullest([each.device for each in found.devices])
        if device is None:
            return None, None, None
        free, total = self.device.free_and_total(device)
        outside = max(0, total - free - self.device.allocated(device)[2])
        return total, outside if self.outside_at_oom is None else self.outside_at_oom, self.device.identity(device)[0]

    def _fullest(self, devices: Iterable[int]) -> int | None:
        """The one with the most reserved; None before the first is used."""
        return max(devices, key=lambda each: self.device.allocated(each)[2], default=None)

    def out_of_memory_at_end(self) -> bool:
        """No step was completed after the last failure."""
        if self.oom_steps:
            return self.hooks.completed <= self.oom_steps[-1]
        failed = any(self.device.out_of_memory_errors(device) for device in self.device.devices())
        return failed and not self.hooks.completed

    def busy(self) -> bool:
        return self._busy

    def allocated(self) -> tuple[int, int, int]:
        fullest = max((self.device.allocated(device) for device in self.device.devices()), default=(0, 0, 0))
        return fullest[0], fullest[1], 0

    def room(self) -> tuple[int, int, int] | None:
        """(reserved, free on the card, total of the card) of the fullest device; None before the first use."""
        device = self._fullest(self.device.devices())
        if device is None:
            return None
        free, total = self.device.free_and_total(device)
        return self.device.allocated(device)[2], free, total

    def assumed_reads(self) -> tuple[tuple[str, int], ...]:
        return ()


def leave_out_own_frames(raw: Mapping[str, Any]) -> None:
    """As a recording without oomdoc shows them: no frame of a hook, and none of what started the script."""
    seen: set[int] = set()
    for holder in _with_frames(raw):
        frames = holder.get("frames")
        if not isinstance(frames, list) or id(frames) in seen:
            continue
        seen.add(id(frames))
        if any(is_recorder(frame["filename"]) for frame in frames):
            end = next((i for i, frame in enumerate(frames) if frame["filename"] == LAUNCHER_FILE), len(frames))
            frames[:] = [frame for frame in frames[:end] if not is_recorder(frame["filename"])]


def _with_frames(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entries in raw.get("device_traces") or ():
        yield from entries
    for segment in raw.get("segments") or ():
        yield segment
        yield from segment.get("blocks") or ()


def _labels(raw: Mapping[str, Any], device: DeviceSnapshot) -> list[object]:
    """`user_metadata` of each event of the device; none where the reader left events out, and rows do not fit."""
    traces = raw.get("device_traces") or []
    entries = traces[device.device] if device.device < len(traces) else []
    if len(entries) != len(device.trace):
        return [None] * len(device.trace)
    return [entry.get("user_metadata") for entry in entries]


@contextmanager
def cuda_recorder(
    *,
    steps: int | None,
    rank: int = 0,
    world_size: int = 1,
    stacks: StackKind = "python",
    max_entries: int = MAX_ENTRIES,
    device: Accelerator | None = None,
) -> Iterator[CudaRecorder]:
    """Records what runs within. The script fails as it would have: `available()` says what to tell before it starts."""
    device = accelerator() if device is None else device
    reason = device.available()
    if reason is not None:
        raise OomdocError(
            f"{reason}: nothing can be recorded on a real GPU here; --virtual runs the script without one"
        )
    recorder = CudaRecorder(device, steps=steps, rank=rank, world_size=world_size, max_entries=max_entries)
    pid = os.getpid()

    def observed(*facts: int) -> None:
        if os.getpid() == pid:  # not in a worker that the script forked
            with faults_told():  # of the error itself the script must hear
                recorder.out_of_memory(*facts)

    device.start(max_entries=max_entries, stacks=stacks)
    device.observe_oom(observed)
    try:
        with recorder.hooks.install(), recorder.batches.install():
            yield recorder
    finally:
        device.stop()
