"""A job's structure from a bare snapshot: module of each row, repeated blocks, parameters of each, the optimizer.

Read from the stacks of the forward, the order in which backward lets go of what was saved, and the sizes of
parameters and gradients. What the frames cannot tell (the parameters' type, the batch) is said in `doubts`.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...diagnosers.interface import Category
from ...snapshots.model import Snapshot, Stacks
from ..job_facts import JobFacts, OptimizerFacts
from ..passes import Iteration, activation_rows, for_backward, is_training, iterations
from ..whatif_timeline import BACKWARD, Timeline
from .backward import owners, readers, segments_of
from .calls import Chain, chain_of
from .sources import source_line
from .tree import Names, Node, tree_of

LEAST_SHARE = 0.05  # of what a forward saves, for a repeated call to be one of the model's blocks
STAGES_APART = 2  # times that the largest stage of a network keeps what the smallest does; its blocks are alike
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_OPTIMIZERS = {
    "adam.py": "Adam", "adamw.py": "AdamW", "sgd.py": "SGD", "adagrad.py": "Adagrad", "rmsprop.py": "RMSprop",
    "adamax.py": "Adamax", "nadam.py": "NAdam", "radam.py": "RAdam", "adafactor.py": "Adafactor", "muon.py": "Muon",
}  # fmt: skip


def derived(timeline: Timeline, snapshot: Snapshot) -> tuple[Timeline, JobFacts]:
    """The timeline with its modules, and the facts; both unchanged or empty where no module's forward is on a stack."""
    stacks = snapshot.stacks
    chains = {int(s): chain_of(stacks, int(s)) for s in np.unique(timeline.stack) if s >= 0}
    chains[-1] = Chain((), ())
    if not any(chain.calls for chain in chains.values()):
        return timeline, JobFacts()
    names = Names()
    paths: dict[int, str] = {}
    roots: list[tuple[Iteration, Node]] = []
    for iteration in iterations(timeline):
        rows = _forward_rows(timeline, iteration)
        root, of_row = tree_of(rows, chains, names)
        roots.append((iteration, root))
        paths |= of_row
        paths |= _of_backward(timeline, iteration, rows, of_row, names, stacks)
    blocks = next((found for each in roots if (found := _blocks(timeline, *each))), ())
    modules = tuple(sorted(set(paths.values()) - {""}))
    number = {path: i for i, path in enumerate(modules)}
    module = timeline.module.copy()
    for row, path in paths.items():
        module[row] = number.get(path, -1)
    named = replace(timeline, module=module, modules=modules)
    return named, _facts(named, names.class_of, blocks, snapshot)


def _forward_rows(timeline: Timeline, iteration: Iteration) -> list[tuple[int, int]]:
    inside = (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(timeline.birth[rows], kind="stable")]
    return list(zip(rows.tolist(), timeline.stack[rows].tolist(), strict=True))


def _of_backward(
    timeline: Timeline,
    iteration: Iteration,
    forward: list[tuple[int, int]],
    paths: dict[int, str],
    names: Names,
    stacks: Stacks,
) -> dict[int, str]:
    """Paths of the rows born in the backward of this iteration."""
    if not is_training(iteration, timeline):
        return {}
    activation = activation_rows(timeline)
    made = [(row, stack) for row, stack in forward if activation[row]]
    fused = {row: _is_fused_attention(stacks, stack) for row, stack in made}
    read_by = readers(segments_of(made, paths), names.class_of, fused, timeline.size)
    saved = for_backward(timeline, iteration)
    frees = sorted((float(timeline.death[row]), path) for row, path in read_by.items() if saved[row])
    back = timeline.is_phase(BACKWARD) & (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
    rows = np.flatnonzero(back)
    first = next((path for row, _ in made if (path := paths.get(row))), "")
    found = owners(timeline.birth[rows], np.array([f[0] for f in frees]), [f[1] for f in frees], first)
    return dict(zip(rows.tolist(), found, strict=True))


def _is_fused_attention(stacks: Stacks, stack: int) -> bool:
    return any("scaled_dot_product" in source_line(frame) for frame in stacks.of(stack)[:2])


def _blocks(timeline: Timeline, iteration: Iteration, root: Node) -> tuple[str, ...]:
    """The outermost calls that one place makes at least twice, and that keep something for backward.

    Of stages (each keeps another amount, one twice as much as another) it is the calls repeated inside them.
    """
    saved = for_backward(timeline, iteration)
    total = sum(int(timeline.size[row]) for row in root.all_rows() if saved[row])

    def kept_by(node: Node) -> int:
        return sum(int(timeline.size[row]) for row in node.all_rows() if saved[row])

    def descend(node: Node, depth: int) -> list[str]:
        found: list[str] = []
        by_call: dict[object, list[Node]] = {}
        for child in node.children:
            by_call.setdefault(child.call, []).append(child)
        for children in by_call.values():
            kept = [kept_by(child) for child in children]
            inside = [path for child in children for path in descend(child, depth + 1)]
            stages = len(set(kept)) == len(kept) and max(kept) > STAGES_APART * min(kept)
            repeated = depth > 0 and len(children) > 1 and any(child.children for child in children)
            if repeated and sum(kept) >= LEAST_SHARE * total and not (stages and inside):
                found.extend(child.path for child in children)
            else:
                found.extend(inside)
        return found

    return tuple(descend(root, 0))


def _facts(timeline: Timeline, class_of: dict[str, str], blocks: tuple[str, ...], snapshot: Snapshot) -> JobFacts:
    stacks = snapshot.stacks
    parameter = timeline.is_category(Category.PARAMETER)
    held = timeline.take(np.flatnonzero(parameter))
    parameter_bytes = held.peak().bytes if len(held) else 0
    item = 2 if _needs_half(timeline.size[parameter]) else 4
    own = _parameters_of_modules(timeline)
    frozen = _frozen_of_blocks(timeline, blocks)
    return JobFacts(
        known=True,
        inferred=True,
        class_of=dict(class_of),
        blocks=blocks,
        parameter_count=parameter_bytes // item,
        parameter_bytes=parameter_bytes,
        trainable_bytes=sum(own.values()),
        largest_parameter_bytes=int(timeline.size[parameter].max()) if parameter.any() else 0,
        bytes_of_dtype={"bfloat16" if item == 2 else "float32": parameter_bytes} if parameter_bytes else {},
        sharded=_on_a_stack(stacks, ("distributed/fsdp/", "_composable/fsdp/", "deepspeed/runtime/zero/")),
        parameter_bytes_of_module={path: own.get(path, 0) + frozen.get(path, 0) for path in own | frozen},
        parameter_bytes_used_by_module=own,
        optimizers=_optimizers(timeline, snapshot, parameter_bytes),
        batch_statistics=_on_a_stack(stacks, ("torch/nn/modules/batchnorm.py",)),
    )


def _needs_half(sizes: NDArray[np.int64]) -> bool:
    """A parameter of an odd number of 2-byte elements."""
    return bool((sizes % 4 == 2).any())


def _parameters_of_modules(timeline: Timeline) -> dict[str, int]:
    """Bytes of each call's own parameters: what its backward makes of a parameter's size, and nothing reads again."""
    sizes = set(timeline.size[timeline.is_category(Category.PARAMETER)].tolist())
    made: dict[str, int] = {}
    for iteration in iterations(timeline):
        if not is_training(iteration, timeline):
            continue
        inside = timeline.is_phase(BACKWARD) & (timeline.birth >= iteration.backward_start)
        inside &= (timeline.birth < iteration.end) & timeline.is_category(Category.GRADIENT) & (timeline.module >= 0)
        found: dict[str, int] = {}
        for row in np.flatnonzero(inside).tolist():
            if int(timeline.size[row]) in sizes:
                path = timeline.modules[timeline.module[row]]
                found[path] = found.get(path, 0) + int(timeline.size[row])
        if sum(found.values()) > sum(made.values()):
            made = found
    return made


def _frozen_of_blocks(timeline: Timeline, blocks: tuple[str, ...]) -> dict[str, int]:
    """Bytes of each block's parameters that no gradient of their size tells of: those of which there are enough."""
    learning = timeline.size[timeline.is_category(Category.GRADIENT)]
    rows = timeline.is_category(Category.PARAMETER) & ~np.isin(timeline.size, learning)
    rows &= timeline.death >= timeline.events
    sizes, counts = np.unique(timeline.size[rows], return_counts=True)
    share = sum(
        int(n) * int(count) // len(blocks) for n, count in zip(sizes, counts, strict=True) if count >= len(blocks) > 0
    )
    return dict.fromkeys(blocks, share) if share else {}


def _optimizers(timeline: Timeline, snapshot: Snapshot, parameter_bytes: int) -> tuple[OptimizerFacts, ...]:
    state = timeline.is_category(Category.OPTIMIZER_STATE)
    held = timeline.take(np.flatnonzero(state)).peak().bytes if state.any() else 0
    stacks = snapshot.stacks
    name = _optimizer_name(snapshot)
    if name is None:
        return ()
    return (
        OptimizerFacts(
            name=name,
            foreach=_named(stacks, "_multi_tensor_") or None,
            fused=_named(stacks, "_fused_") or None,
            parameter_bytes=parameter_bytes,
            state_bytes=held,
        ),
    )


def _optimizer_name(snapshot: Snapshot) -> str | None:
    """From the profiler's annotation of its step (AdamW runs Adam's code), else from the file of its code."""
    for annotation in snapshot.annotations:
        match = _STEP.match(annotation.name)
        if match:
            return match.group(1)
    for frame in snapshot.stacks.frames:
        file = frame.filename.replace("\\", "/")
        name = _OPTIMIZERS.get(file.rpartition("/")[2]) if "torch/optim/" in file else None
        if name is not None:
            return name
    return None


def _named(stacks: Stacks, prefix: str) -> bool:
    return any(f.name.startswith(prefix) and "torch/optim/" in f.filename.replace("\\", "/") for f in stacks.frames)


def _on_a_stack(stacks: Stacks, parts: Iterable[str]) -> bool:
    return any(part in frame.filename.replace("\\", "/") for frame in stacks.frames for part in parts)
