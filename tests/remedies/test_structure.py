"""The model's structure as the frames of a bare recording tell it."""

from pathlib import Path

import numpy as np
import pytest
from oomdoc.diagnosers.interface import Category, DeviceProfile
from oomdoc.diagnosers.profile import build
from oomdoc.remedies.estimating import Case, case_of
from oomdoc.remedies.interface import NotApplicable
from oomdoc.remedies.planner import estimate
from oomdoc.remedies.structure.calls import Chain, chain_of
from oomdoc.remedies.structure.tree import Names, Node, tree_of
from oomdoc.snapshots.model import Frame, Stacks
from oomdoc.snapshots.reader import load
from predicted import JOBS, Record, bare, job_for

MODULE = "/site/torch/nn/modules/module.py"
CALL = (Frame(MODULE, 1778, "_wrapped_call_impl"), Frame(MODULE, 1884, "_call_impl"))


def stack_of(*places: str) -> tuple[Frame, ...]:
    """Frames, outermost first, of `model.py:10` calls; a place after the first is entered through a module's call."""
    frames: list[Frame] = []
    for index, place in enumerate(places):
        file, line = place.split(":")
        frames += CALL if index else ()
        frames.append(Frame(f"/user/{file}.py", int(line), "forward" if index else "<module>"))
    return tuple(frames)


def tree(*rows: tuple[str, ...]) -> Node:
    frames = list(dict.fromkeys(f for row in rows for f in stack_of(*row)))
    known = list(dict.fromkeys(rows))
    stacks = Stacks(
        frames=tuple(frames), stacks=tuple(tuple(frames.index(f) for f in reversed(stack_of(*row))) for row in known)
    )
    chains: dict[int, Chain] = {i: chain_of(stacks, i) for i in range(len(known))}
    return tree_of(((i, known.index(row)) for i, row in enumerate(rows)), chains, Names())[0]


A, B, C = (("script:1", "model:5", "layer:10", "a:1"), ("script:1", "model:5", "layer:11", "b:1"),
           ("script:1", "model:5", "layer:12"))  # fmt: skip
EMBED, HEAD = ("script:1", "model:3", "embed:1"), ("script:1", "model:7", "head:1")


def test_the_layers_of_a_loop_are_told_apart() -> None:
    model = tree(EMBED, A, B, C, A, B, C, A, B, C, HEAD).children[0]
    names = [child.path.rpartition(".")[2] for child in model.children]
    assert names == ["embed@3[0]", "layer@5[0]", "layer@5[1]", "layer@5[2]", "head@7[0]"]
    assert [sorted(child.all_rows()) for child in model.children[1:4]] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_loop_at_the_start_of_a_model_is_not_the_model_again() -> None:
    script = tree(A, B, C, A, B, C, HEAD)
    assert len(script.children) == 1
    assert len(script.children[0].children) == 3


def test_the_model_again_is_the_model_again() -> None:
    script = tree(A, B, A, B, HEAD, A, B, A, B, HEAD)
    assert [len(model.children) for model in script.children] == [3, 3]


def test_a_loop_inside_a_layer_does_not_end_the_layer() -> None:
    layer = tree(EMBED, A, B, C, B, C, A, B, C, B, C).children[0].children[1:]
    assert len(layer) == 2
    assert [len(each.all_rows()) for each in layer] == [5, 5]


def test_rows_of_one_line_belong_to_one_call() -> None:
    layer = tree(EMBED, A, A, A, B, C).children[0].children[1]
    assert [len(child.rows) for child in layer.children] == [3, 1]


def _both(record: Record, job: str) -> tuple[Case, Case]:
    plain = record(*JOBS[job])
    return case_of(plain, job_for("fsdp", 8)), case_of(bare(plain), job_for("fsdp", 8))


@pytest.mark.parametrize("job", ["lm", "encoder"])
def test_blocks_parameters_and_modules_are_those_that_were_recorded(record: Record, job: str) -> None:
    told, found = _both(record, job)
    assert found.facts.inferred
    assert len(found.facts.blocks) == len(told.facts.blocks)
    assert found.facts.parameter_bytes == told.facts.parameter_bytes
    for ours, theirs in zip(found.facts.blocks, told.facts.blocks, strict=True):
        assert found.facts.bytes_below(ours) == told.facts.bytes_below(theirs)
        same = found.timeline.under(ours) & found.timeline.is_phase("forward")
        assert np.array_equal(same, told.timeline.under(theirs) & told.timeline.is_phase("forward"))
    back = told.timeline.is_phase("backward") & told.timeline.is_category(Category.GRADIENT)
    for ours, theirs in zip(found.facts.blocks, told.facts.blocks, strict=True):
        assert np.array_equal(found.timeline.under(ours) & back, told.timeline.under(theirs) & back)
    theirs = told.facts.optimizers[0]  # AdamW runs the code of Adam, and only the profiler's annotations name it
    assert theirs.name.startswith(found.facts.optimizers[0].name)
    assert found.facts.optimizers[0].state_bytes == pytest.approx(theirs.state_bytes, rel=0.01)


def test_recordings_of_real_gpus_get_plans(shared: Path) -> None:
    """Published snapshots of language models: repeated layers are found, and what is predicted is possible."""
    with_blocks = 0
    for path in sorted((shared / "data" / "snapshots").glob("lm-f*.pickle")):
        profile: DeviceProfile = build([load(path)]).devices[0]
        case = case_of(profile, job_for("fsdp", None))
        assert case.timeline.self_check() == ()
        with_blocks += bool(case.facts.blocks)
        found = estimate("activation-checkpointing", profile, job_for("activation-checkpointing", None))
        if not isinstance(found, NotApplicable):
            assert all(0 < each.predicted_peak_bytes.expected <= case.allocated_before * 1.02 for each in found)
    assert with_blocks >= 4
