"""Split each block's matrices over the GPUs of a node: tensor parallel, with sequence parallel for what lies between.

Applies when: there are several GPUs in a node and one block's parameters or activations are large.
Saves: of the blocks' parameters, gradients and optimizer state all but 1/t; of the activations what the split matrices
make; with `sequence_parallel` also norms, dropouts and sums: all of a block's activations but 1/t, and what enters the
matrices, which torch keeps gathered. By the formulas
of arXiv 2205.05198: per layer sbh(10 + 24/t + 5as/(ht)), with sequence parallel (sbh/t)(34 + 5as/h).
Costs: four all-reduces of a block's output in each block and step (as gathers and scatters with sequence parallel),
which computation waits for: over NVLink only.
Numerics: identical up to the order of sums.
Conflicts: heads and widths have to be divisible by t; does not cut the batch, so the data parallel degree falls by t.
Frameworks: torch `parallelize_module` (Colwise, Rowwise, SequenceParallel); torchtitan `tensor_parallel_degree`;
Megatron `--tensor-model-parallel-size`; Hugging Face `tp_plan="auto"`; Axolotl `tensor_parallel_size`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.text import size
from .autocast_kinds import Kind
from .autocast_rows import kinds_of
from .costs.parallel import tensor_parallel_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .parallel_rows import degree, of_blocks, refused, share_in_blocks, with_model_split
from .passes import BlockPass
from .whatif_timeline import Mask

NAME = "tensor-parallel"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REWORK


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    no = refused(case, NAME)
    if no is not None:
        return no
    t = degree(case, 8)
    if t < 2:
        return NotApplicable(NAME, "one GPU a node: the matrices would be split over the network")
    return tuple(Setting(name=NAME, options={"degree": t, "sequence_parallel": s}) for s in (False, True))


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    t, sequence = int(options["degree"]), bool(options.get("sequence_parallel", False))
    split = of_blocks(case) if sequence else _between_products(case)
    if not split.any():
        return NotApplicable(NAME, "no block's activations are in the trace")
    new = with_model_split(case, case.timeline.resized(split, 1 / t), t, share_in_blocks(case))
    gathered = _gathered(case) if sequence else np.array([], np.intp)
    kept = new.joined(case.timeline.take(gathered)) if len(gathered) else new
    outputs = [int(case.timeline.size[p.output]) for p in case.passes if p.output >= 0]
    return Change(
        setting=Setting(name=NAME, options={"degree": t, "sequence_parallel": sequence}),
        expected=kept,
        low=new if len(gathered) else None,
        high=None,
        step_time_factor=tensor_parallel_factor(case, t, max(outputs, default=0)),
        numerics=NUMERICS,
        why=f"each of {t} GPUs keeps 1/{t} of the blocks' parameters, and of "
        + ("their activations" if sequence else "what their matrices make")
        + f"; {size(max(outputs, default=0))} are summed four times a block",
        doubt="which activations are split is read from the order of products and norms"
        + (
            "; what is gathered for the matrices is kept, as torch does, or gathered again, as Megatron does" * sequence
        ),
        time_doubt="from half of the sums hidden to none",
    )


def _between_products(case: Case) -> Mask:
    """In each block, from a norm to the product that closes its branch: what the split matrices make.

    The closing product's own result, and what follows to the next norm, is whole on each GPU.
    """
    kinds = kinds_of(case.timeline, case.facts.class_of, case.profile.snapshot.stacks)
    found = np.zeros(len(case.timeline), np.bool_)
    for each in case.passes:
        for branch in _branches(each, kinds):
            products = [i for i, row in enumerate(branch) if kinds[row] == Kind.PRODUCT]
            if len(products) > 1:
                found[branch[products[0] : products[-1]]] = True
    back = of_blocks(case) & case.timeline.is_phase("backward")
    split_modules = np.unique(case.timeline.module[found])
    return found | (back & np.isin(case.timeline.module, split_modules))


def _gathered(case: Case) -> NDArray[np.intp]:
    """What enters the split matrices of each branch: whole on every GPU, and saved for their weights' gradients."""
    kinds = kinds_of(case.timeline, case.facts.class_of, case.profile.snapshot.stacks)
    found = []
    for each in case.passes:
        for branch in _branches(each, kinds):
            products = [i for i, row in enumerate(branch) if kinds[row] == Kind.PRODUCT]
            if len(products) > 1 and products[0]:
                before = branch[: products[0]]
                found.append(int(before[case.timeline.size[before].argmax()]))
    return np.array(found, np.intp)


def _branches(block: BlockPass, kinds: "np.ndarray[Any, np.dtype[np.int8]]") -> "list[np.ndarray[Any, Any]]":
    norms = np.flatnonzero(kinds[block.rows] == Kind.NORM)
    starts = norms[np.append(True, np.diff(norms) > 1)] if len(norms) else np.array([0])
    return [rows for rows in np.split(block.rows, starts) if len(rows)]
