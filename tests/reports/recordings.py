"""Recordings of any length, made by the real allocator, as PyTorch would dump them: what the page is tested with."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from oomdoc.allocator.config import AllocatorConfig
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.snapshots.model import Action, Blocks, DeviceSnapshot, Frame, Segments, Snapshot, Stacks, Trace

MIB = 1 << 20
TORCH = "/venv/lib/python3.12/site-packages/torch/"
HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 2'>",
    "\"'`&<>{{ 7*7 }}{% raw %}${window.pwned=3}",
    "<!--<script>]]>--!>\\u003cscript\\u003e",
    "\x1b[31mred\x07\x00\u202e\u2066evil\u2028\u2029",
    "\ud800 lone, \U0001f4a5 表示 العربية",
    "javascript:window.pwned=4",
    "__proto__",
)


class Recorder:
    """One device's trace."""

    def __init__(self, capacity: int, stacks: Sequence[Sequence[Frame]]) -> None:
        self.events: list[tuple[int, int, int, int, int]] = []
        self.free_at_oom: dict[int, int] = {}
        self.now = -1
        self.stack_of: dict[int, int] = {}
        self.stacks = stacks
        self.allocator = Allocator(AllocatorConfig(), capacity, self._emit)

    def _emit(self, action: Action, address: int, size: int, stream: int) -> None:
        if action == Action.OOM:
            self.free_at_oom[len(self.events)] = address
            address = 0
        self.events.append((action, address, size, stream, self.now))

    def alloc(self, size: int, stack: int) -> int:
        self.now = stack % len(self.stacks)
        address = self.allocator.malloc(size)
        self.stack_of[address] = self.now
        return address

    def free(self, addresses: Sequence[int], stack: int) -> None:
        self.now = stack % len(self.stacks)
        for address in addresses:
            self.allocator.free(address)

    def device(self, number: int) -> DeviceSnapshot:
        columns = np.array(self.events, np.int64).reshape(-1, 5)
        views = list(self.allocator.segments())
        rows = [(index, block) for index, view in enumerate(views) for block in view.blocks]
        return DeviceSnapshot(
            device=number,
            trace=Trace(
                action=columns[:, 0].astype(np.uint8), address=columns[:, 1].astype(np.uint64), size=columns[:, 2],
                stream=columns[:, 3].astype(np.uint64), time_us=10 * np.arange(len(columns), dtype=np.int64),
                stack=columns[:, 4].astype(np.int32), pool=np.zeros(len(columns), np.int32),
                oom_device_free=self.free_at_oom,
            ),
            segments=Segments(
                address=np.array([v.address for v in views], np.uint64),
                total_bytes=np.array([v.total_bytes for v in views], np.int64),
                stream=np.array([v.stream for v in views], np.uint64),
                large=np.array([v.large for v in views], np.bool_),
                expandable=np.array([v.expandable for v in views], np.bool_),
                pool=np.zeros(len(views), np.int32), stack=np.full(len(views), -1, np.int32),
            ),
            blocks=Blocks(
                address=np.array([b.address for _, b in rows], np.uint64),
                size=np.array([b.size for _, b in rows], np.int64),
                requested=np.array([b.requested if b.state else 0 for _, b in rows], np.int64),
                state=np.array([b.state for _, b in rows], np.uint8),
                segment=np.array([index for index, _ in rows], np.int32),
                stack=np.array([self.stack_of.get(b.address, -1) if b.state else -1 for _, b in rows], np.int32),
            ),
        )  # fmt: skip


def training(events: int, stacks: Sequence[Sequence[Frame]], capacity: int = 1 << 36, layers: int = 12) -> Recorder:
    """Weights, then forwards and backwards with sizes that differ, until there are `events` or no memory is left."""
    recorder = Recorder(capacity, stacks)
    step = 0
    try:
        kept = [recorder.alloc(8 * MIB + 512 * layer, MOVED) for layer in range(layers)]
        gradients: list[int] = []
        while len(recorder.events) < events:
            saved = [recorder.alloc((4 + (step + at) % 5) * MIB, FORWARD + at % 24) for at in range(layers * 4)]
            recorder.free(gradients, STEP)
            gradients = []
            for at, address in enumerate(reversed(saved)):
                scratch = recorder.alloc(3 * MIB, BACKWARD)
                if at % 4 == 0:
                    gradients.append(recorder.alloc(8 * MIB + 512 * (at // 4), ACCUMULATE))
                recorder.free([address, scratch], BACKWARD)
            if step == 0:
                kept += [recorder.alloc(8 * MIB + 512 * (at // 2), STEP) for at in range(2 * layers)]
            step += 1
        assert kept
    except OutOfMemory:
        pass
    return recorder


# Which stack of `ordinary_stacks` a block of the training gets; other lists wrap around
MOVED, ACCUMULATE, BACKWARD, STEP, FORWARD = range(5)


def ordinary_stacks() -> list[tuple[Frame, ...]]:
    """A training loop as recordings show it: the model is moved, forward, backward, the optimizer's step."""
    module = Frame("/job/train.py", 90, "<module>")
    call = Frame(TORCH + "nn/modules/module.py", 1787, "_call_impl")
    engine = Frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)")
    accumulate = Frame("??", 0, "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)")
    moved = (
        Frame(TORCH + "nn/modules/module.py", 942, "_apply"), Frame(TORCH + "nn/modules/module.py", 1355, "to"),
        Frame("/job/train.py", 30, "main"), module,
    )  # fmt: skip
    optimizer = (
        Frame(TORCH + "optim/adam.py", 150, "_init_group"), Frame(TORCH + "optim/adam.py", 230, "step"),
        Frame("/job/train.py", 44, "main"), module,
    )  # fmt: skip
    forward = [
        (Frame("/job/model.py", line, "forward"), call, Frame("/job/train.py", 40, "main"), module)
        for line in range(10, 34)
    ]
    return [moved, (accumulate, engine), (engine,), optimizer, *forward]


def hostile_stacks() -> list[tuple[Frame, ...]]:
    return [(Frame(f"/job/{text}.py", 3, text), Frame(text, 7, f"outer {text}")) for text in HOSTILE]


def snapshot(devices: Sequence[Recorder]) -> Snapshot:
    """One file of one process; all recorders share the stacks of the first."""
    frames = list(dict.fromkeys(frame for stack in devices[0].stacks for frame in stack))
    index = {frame: number for number, frame in enumerate(frames)}
    return Snapshot(
        devices=tuple(each.device(number) for number, each in enumerate(devices)),
        stacks=Stacks(
            frames=tuple(frames), stacks=tuple(tuple(index[f] for f in stack) for stack in devices[0].stacks)
        ),
    )


def command(*words: str | Path) -> "subprocess.CompletedProcess[bytes]":
    """`oomdoc analyze` with these words."""
    return subprocess.run(
        [sys.executable, "-m", "oomdoc", "analyze", *map(str, words)],
        capture_output=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"},
    )  # fmt: skip


def exported(path: Path, form: str) -> bytes:
    done = command(path, "--format", form)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.stdout
