"""A recording of the virtual GPU as others would have made it: with a GPU's stacks, begun late, without frames.

A virtual run calls the autograd engine from its own thread and knows everything from the start. A GPU's backward runs
in a thread of C++, recordings begin in the middle of a job, rings lose their oldest events, and some have no stacks.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from oomdoc.snapshots.model import Action, Annotation, DeviceSnapshot, Frame, Snapshot, Stacks, Trace
from oomdoc.snapshots.timeline import lifetimes

_UNWIND = (Frame("??", 0, "torch::unwind::unwind()"), Frame("??", 0, "at::detail::empty_generic"))
_ENGINE = (
    Frame("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"),
    Frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
)
_CAST = Frame("??", 0, "at::autocast::cached_cast(c10::ScalarType, at::Tensor const&, c10::DeviceType)")
_CONVOLUTION = Frame("??", 0, "at::native::run_conv_plan(cudnnContext*, at::Tensor const&)")
_TICK_US = 10

Column = NDArray[np.int32]


def as_on_a_gpu(snapshot: Snapshot, *, native: bool) -> Snapshot:
    """The stacks and annotations that PyTorch records, with C++ frames or with those of Python only."""
    told = _name_kernels(snapshot) if native else snapshot
    frames: dict[Frame, int] = {}
    stacks: list[tuple[int, ...]] = []
    table = np.full(len(told.stacks.stacks) + 1, -1, np.int32)
    for index in range(len(told.stacks.stacks)):
        stack = _of_a_gpu(told.stacks.of(index), native)
        if stack:
            table[index] = len(stacks)
            stacks.append(tuple(frames.setdefault(frame, len(frames)) for frame in stack))
    moved = _with_stacks(told, lambda column: table[column], Stacks(frames=tuple(frames), stacks=tuple(stacks)))
    device = moved.devices[0]
    times = _TICK_US * np.arange(1, len(device.trace) + 1, dtype=np.int64)
    timed = replace(device, trace=replace(device.trace, time_us=times))
    return replace(moved, devices=(timed,), annotations=_annotations(snapshot))


def _of_a_gpu(stack: tuple[Frame, ...], native: bool) -> tuple[Frame, ...]:
    ours = [frame for frame in stack if "/recorders/" not in frame.filename]
    engine = next((at for at, frame in enumerate(ours) if frame.name == "_engine_run_backward"), None)
    if engine is not None:
        ours = ours[:engine] + list(_ENGINE if native else ())
    return (*_UNWIND, *ours) if native else tuple(ours)


def _name_kernels(snapshot: Snapshot) -> Snapshot:
    """The C++ frames of autocast's casts and of convolutions' workspaces."""
    recording, device = snapshot.recording, snapshot.devices[0]
    assert recording is not None
    frames, stacks = [*snapshot.stacks.frames, _CAST, _CONVOLUTION], list(snapshot.stacks.stacks)
    column, known = device.trace.stack.copy(), {}
    category = recording.devices[device.device].category
    for event in np.flatnonzero((device.trace.action == Action.ALLOC) & (category >= 0) & (column >= 0)).tolist():
        stack, kind = int(column[event]), recording.categories[category[event]]
        convolution = kind == "workspace" and any("conv" in frames[frame].name for frame in stacks[stack])
        if kind == "autocast_cache" or convolution:
            inner = len(frames) - (1 if convolution else 2)
            if (stack, inner) not in known:
                known[stack, inner] = len(stacks)
                stacks.append((inner, *stacks[stack]))
            column[event] = known[stack, inner]
    changed = replace(device, trace=replace(device.trace, stack=column))
    return replace(snapshot, devices=(changed,), stacks=Stacks(frames=tuple(frames), stacks=tuple(stacks)))


def _annotations(snapshot: Snapshot) -> tuple[Annotation, ...]:
    recording, device = snapshot.recording, snapshot.devices[0]
    assert recording is not None
    optimizers = recording.facts.get("optimizers")
    first = optimizers[0] if isinstance(optimizers, list) and optimizers else {}
    name = f"Optimizer.step#{first.get('name', 'Adam') if isinstance(first, Mapping) else 'Adam'}.step"
    marks = recording.devices[device.device].marks
    ends = [mark.event for mark in marks[1:]] + [len(device.trace)]
    return tuple(
        Annotation(stage=stage, name=name, device=device.device, time_us=_TICK_US * event + _TICK_US // 2)
        for mark, end in zip(marks, ends, strict=True)
        if mark.phase == "optimizer"
        for stage, event in (("START", mark.event), ("END", end))
    )


def frameless(snapshot: Snapshot) -> Snapshot:
    return _with_stacks(snapshot, lambda column: np.full(len(column), -1, np.int32), Stacks())


def begun_late(snapshot: Snapshot, event: int, *, ring: bool = False) -> Snapshot:
    """Recording began at `event`. A `ring` that lost what came before still has the stacks of the blocks alive."""
    device, trace = snapshot.devices[0], snapshot.devices[0].trace
    lives = lifetimes(device)
    stacks = device.blocks.stack.copy()
    if not ring:
        stacks[lives.block[(lives.birth < event) & (lives.block >= 0)]] = -1
    cut = Trace(
        **{name: getattr(trace, name)[event:] for name in _COLUMNS},
        oom_device_free={at - event: free for at, free in trace.oom_device_free.items() if at >= event},
    )
    kept = [note for note in snapshot.annotations if ring or note.time_us >= _TICK_US * event]
    late = replace(device, trace=cut, blocks=replace(device.blocks, stack=stacks))
    return replace(snapshot, devices=(late,), annotations=tuple(kept), recording=None)


_COLUMNS = ("action", "address", "size", "stream", "time_us", "stack", "pool")


def _with_stacks(snapshot: Snapshot, change: Callable[[Column], Column], stacks: Stacks) -> Snapshot:
    def of(device: DeviceSnapshot) -> DeviceSnapshot:
        return replace(
            device,
            trace=replace(device.trace, stack=change(device.trace.stack)),
            blocks=replace(device.blocks, stack=change(device.blocks.stack)),
            segments=replace(device.segments, stack=change(device.segments.stack)),
        )

    return replace(snapshot, devices=tuple(map(of, snapshot.devices)), stacks=stacks)


def beginnings(snapshot: Snapshot) -> dict[str, int]:
    """Events at which a recording may begin: before and within each phase of a step in the middle of the job."""
    assert snapshot.recording is not None
    marks = snapshot.recording.devices[0].marks
    steps = sorted({mark.step for mark in marks})
    middle = steps[len(steps) // 2] if len(steps) > 2 else steps[-1]
    ends = [mark.event for mark in marks[1:]] + [len(snapshot.devices[0].trace)]
    found = {}
    for phase in ("forward", "backward", "optimizer"):
        mine = [i for i, mark in enumerate(marks) if (mark.step, mark.phase) == (middle, phase)]
        if mine:
            if phase == "forward":
                found["before a forward"] = marks[mine[-1]].event
            found[f"within {phase}"] = (marks[mine[-1]].event + ends[mine[-1]]) // 2
    return found


def variants(snapshot: Snapshot) -> Iterator[tuple[str, Snapshot, int]]:
    """Name, recording without the "oomdoc" key, and the event of the whole one that it begins at."""
    native, python = as_on_a_gpu(snapshot, native=True), as_on_a_gpu(snapshot, native=False)
    yield "whole, C++ frames", replace(native, recording=None), 0
    yield "whole, Python frames", replace(python, recording=None), 0
    yield "whole, no annotations", replace(python, recording=None, annotations=()), 0
    for name, event in beginnings(snapshot).items():
        yield f"late, {name}", begun_late(native, event), event
        yield f"ring, {name}", begun_late(python, event, ring=True), event
    yield "whole, no frames", frameless(replace(python, recording=None)), 0
    for event in sorted(beginnings(snapshot).values())[:1]:
        yield "late, Python frames", begun_late(python, event), event
        yield "late, no frames", begun_late(frameless(python), event), event
