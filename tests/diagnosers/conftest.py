"""Made-up jobs on the real allocator: every trace of these tests is what PyTorch's rules make of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from oomdoc.allocator.config import AllocatorConfig
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.snapshots.model import (
    Action,
    Annotation,
    Blocks,
    DeviceSnapshot,
    Frame,
    Recording,
    Segments,
    Snapshot,
    Stacks,
    Trace,
)

MIB = 1 << 20
UNIT = 32 * MIB  # segments of 20 MiB are small beside it
TORCH = "/venv/lib/python3.12/site-packages/torch/"
MAIN = Frame("/job/train.py", 90, "<module>")
Stack = tuple[Frame, ...]


def script(line: int, *inner: Frame) -> Stack:
    """A line of train.py:main, below it whatever it calls."""
    return (*inner, Frame("/job/train.py", line, "main"), MAIN)


def model(line: int, function: str = "forward", *inner: Frame, loop: int = 40) -> Stack:
    """A line of the model, inside its forward, called from the training loop."""
    call = Frame(TORCH + "nn/modules/module.py", 1787, "_call_impl")
    return script(loop, *inner, Frame("/job/model.py", line, function), call)


MOVE = script(
    30, Frame(TORCH + "nn/modules/module.py", 942, "_apply"), Frame(TORCH + "nn/modules/module.py", 1355, "to")
)
ENGINE = (Frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)"),)
ACCUMULATE = (Frame("??", 0, "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"), *ENGINE)
INIT_STATE = script(44, Frame(TORCH + "optim/adam.py", 150, "_init_group"), Frame(TORCH + "optim/adam.py", 230, "step"))
FOREACH = script(
    44, Frame(TORCH + "optim/adam.py", 791, "_multi_tensor_adam"), Frame(TORCH + "optim/adam.py", 248, "step")
)
ZERO_GRAD = script(45, Frame(TORCH + "optim/optimizer.py", 1066, "zero_grad"))
CUBLAS = (Frame("", 0, "at::cuda::getNewWorkspace()"), *model(11))
CROSS_ENTROPY = script(41, Frame(TORCH + "nn/functional.py", 3504, "cross_entropy"))
LOADER = script(38, Frame(TORCH + "utils/data/dataloader.py", 700, "__next__"))


@dataclass
class Job:
    """Allocations with stacks, on one device; `snapshot()` is what a dump would hold."""

    capacity: int = 1 << 40
    outside: int | None = None  # known card size: capacity + outside
    config: AllocatorConfig = field(default_factory=AllocatorConfig)
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.events: list[tuple[Action, int, int, int, int]] = []
        self.free_at_oom: dict[int, int] = {}
        self.stacks: dict[Stack, int] = {}
        self.annotations: list[Annotation] = []
        self.block_stack: dict[int, int] = {}
        self.now: Stack = ()
        self.allocator = Allocator(self.config, self.capacity, self._emit)

    def _emit(self, action: Action, address: int, size: int, stream: int) -> None:
        stack = self.stacks.setdefault(self.now, len(self.stacks)) if self.now else -1
        if action == Action.OOM:
            self.free_at_oom[len(self.events)] = address
            address = 0
        self.events.append((action, address, size, stream, stack))

    def alloc(self, size: int, stack: Stack, stream: int = 0, pool: tuple[int, int] | None = None) -> int:
        self.now = stack
        address = self.allocator.malloc(size, stream, pool)
        self.block_stack[address] = self.stacks.get(stack, -1)
        return address

    def free(self, addresses: int | Sequence[int], stack: Stack) -> None:
        self.now = stack
        for address in [addresses] if isinstance(addresses, int) else addresses:
            self.allocator.free(address)

    def annotate(self, name: str, stage: str) -> None:
        self.annotations.append(
            Annotation(stage=stage, name=name, device=0, time_us=10 * len(self.events) + 5 * (stage == "END") - 4)
        )

    def snapshot(self) -> Snapshot:
        columns = np.array(self.events or np.zeros((0, 5)), dtype=np.int64).reshape(-1, 5)
        views = list(self.allocator.segments())
        rows = [(i, block) for i, view in enumerate(views) for block in view.blocks]
        frames = {frame: 0 for stack in self.stacks for frame in stack}
        index = {frame: i for i, frame in enumerate(frames)}
        pools = list(dict.fromkeys([(0, 0), *(view.pool_id for view in views)]))
        device = DeviceSnapshot(
            device=0,
            trace=Trace(
                action=columns[:, 0].astype(np.uint8),
                address=columns[:, 1].astype(np.uint64),
                size=columns[:, 2],
                stream=columns[:, 3].astype(np.uint64),
                time_us=10 * np.arange(len(columns), dtype=np.int64),
                stack=columns[:, 4].astype(np.int32),
                pool=np.zeros(len(columns), np.int32),
                oom_device_free=self.free_at_oom,
            ),
            segments=Segments(
                address=np.array([v.address for v in views], np.uint64),
                total_bytes=np.array([v.total_bytes for v in views], np.int64),
                stream=np.array([v.stream for v in views], np.uint64),
                large=np.array([v.large for v in views], np.bool_),
                expandable=np.array([v.expandable for v in views], np.bool_),
                pool=np.array([pools.index(v.pool_id) for v in views], np.int32),
                stack=np.full(len(views), -1, np.int32),
            ),
            blocks=Blocks(
                address=np.array([b.address for _, b in rows], np.uint64),
                size=np.array([b.size for _, b in rows], np.int64),
                requested=np.array([b.requested if b.state else 0 for _, b in rows], np.int64),
                state=np.array([b.state for _, b in rows], np.uint8),
                segment=np.array([i for i, _ in rows], np.int32),
                stack=np.array([self._stack_of(b.address) if b.state else -1 for _, b in rows], np.int32),
            ),
        )
        return Snapshot(
            devices=(replace(device, pools=tuple(pools)),),
            stacks=Stacks(frames=tuple(frames), stacks=tuple(tuple(index[f] for f in s) for s in self.stacks)),
            annotations=tuple(self.annotations),
            recording=self._recording(),
        )

    def _stack_of(self, address: int) -> int:
        return self.block_stack.get(address, -1)

    def _recording(self) -> Recording | None:
        """Only the size of the card: categories are to be inferred."""
        if self.outside is None:
            return None
        return Recording(
            schema="oomdoc.recording/1",
            kind="virtual",
            argv=("train.py",),
            versions={},
            gpu="test",
            capacity_bytes=self.capacity + self.outside,
            outside_bytes=self.outside,
            rank=0,
            world_size=1,
            categories=(),
            modules=(),
            devices={},
            facts=self.facts,
        )


@dataclass
class Training(Job):
    """A transformer-like training loop. Sizes are bytes; each flag is one thing that a user does wrong."""

    layers: int = 6
    weight: int = 4 * UNIT  # of each of two weights per layer
    activation: int = 2 * UNIT  # each of four per layer
    logits: int = 2 * UNIT
    scores: int = 0  # attention scores, two per layer
    foreach: bool = False
    moments: int = 2
    keep_loss: bool = False  # a validation loss with its graph, in every step
    keep_output: int = 0  # bytes of an output kept in every step
    keep_previous: bool = False  # the last forward's tensors live until the next forward is over
    zero_late: bool = False  # zero_grad after forward
    lengths: Sequence[float] = ()  # factor of the activations, by step

    def build(self) -> None:
        self.parameters = [
            self.alloc(size, MOVE) for _ in range(self.layers) for size in (self.weight, self.weight, 8192)
        ]
        self.sizes = [size for _ in range(self.layers) for size in (self.weight, self.weight, 8192)]
        self.state: list[int] = []
        self.gradients: list[int] = []
        self.kept: list[int] = []
        self.previous: list[int] = []

    def forward(self, step: int = 0, loop: int = 40) -> list[int]:
        factor = self.lengths[step] if step < len(self.lengths) else 1.0
        saved = []
        for _ in range(self.layers):
            size = int(self.activation * factor)
            saved += [self.alloc(size + line * 512, model(line, loop=loop)) for line in (11, 12, 13, 14)]
            if self.scores:
                softmax = Frame(TORCH + "nn/functional.py", 2100, "softmax")
                saved.append(self.alloc(self.scores, model(21, "attention", loop=loop)))
                saved.append(self.alloc(self.scores, model(22, "attention", softmax, loop=loop)))
        saved.append(self.alloc(int(self.logits * factor), model(30, loop=loop)))
        return saved

    def loss(self) -> list[int]:
        return [self.alloc(self.logits, CROSS_ENTROPY), self.alloc(4, CROSS_ENTROPY)]

    def backward(self, saved: list[int]) -> None:
        fresh = not self.gradients
        for index in reversed(range(len(self.sizes))):
            temporary = self.alloc(self.activation, ENGINE)
            if fresh:
                self.gradients.append(self.alloc(self.sizes[index], ACCUMULATE))
            if saved and not self.keep_previous:
                self.free(saved.pop(), ENGINE)
            self.free(temporary, ENGINE)
        if not self.keep_previous:
            self.free(saved, ENGINE)

    def optimizer_step(self) -> None:
        self.annotate("Optimizer.step#AdamW.step", "START")
        if not self.state:
            self.state = [self.alloc(size, INIT_STATE) for size in self.sizes for _ in range(self.moments)]
        if self.foreach:
            temporaries = [self.alloc(size, FOREACH) for size in self.sizes]
            self.free(temporaries, FOREACH)
        else:
            for size in self.sizes[:1]:
                self.free(self.alloc(size, FOREACH), FOREACH)
        self.annotate("Optimizer.step#AdamW.step", "END")

    def zero_grad(self) -> None:
        self.free(self.gradients, ZERO_GRAD)
        self.gradients = []

    def step(self, number: int) -> None:
        batch = self.alloc(65536, LOADER)
        saved = self.forward(number)
        saved += self.loss()
        if self.keep_previous and self.previous:
            self.free(self.previous, script(40))
        self.previous = saved if self.keep_previous else []
        if self.zero_late and self.gradients:
            self.zero_grad()
        self.backward(saved)
        self.optimizer_step()
        if not self.zero_late:
            self.zero_grad()
        if self.keep_loss:
            self.kept += self.forward(number, loop=48)
        if self.keep_output:
            self.kept.append(self.alloc(self.keep_output, script(49)))
        self.free(batch, script(38))

    def run(self, steps: int = 5) -> "Training":
        """Until the steps are done or memory is out."""
        try:
            self.build()
            for number in range(steps):
                self.step(number)
        except OutOfMemory:
            pass
        return self


@pytest.fixture
def kit() -> SimpleNamespace:
    """Everything above, by name: with importlib mode tests cannot import a neighbour."""
    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})


@pytest.fixture
def healthy() -> Snapshot:
    """A job that fits with room to spare, does nothing wrong, and runs long enough to tell."""
    return Training(capacity=1 << 40, outside=500 * MIB).run(steps=6).snapshot()
