"""Split each sequence over GPUs (context parallel, ring attention): each computes its part of the tokens.

Applies when: sequences are long: activations of one sample are a large share of the peak, and the batch cannot shrink.
Saves: of activations, inputs and what backward makes of them all but 1/c; parameters stay.
Costs: keys and values go round the ring in each block, forward and backward; hidden where a block's attention takes
longer than sending them.
Numerics: identical up to the order of sums.
Conflicts: positions have to follow the split; a causal mask needs balanced parts; the loss is averaged over parts.
Frameworks: torch `context_parallel`; torchtitan `context_parallel_degree`; Megatron `--context-parallel-size`;
DeepSpeed-Ulysses; Axolotl `context_parallel_size`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.text import size
from .autocast_kinds import Kind
from .autocast_rows import kinds_of
from .batch_scaling import scales_with_batch, with_batch
from .costs.parallel import context_parallel_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .parallel_rows import degree, refused

NAME = "context-parallel"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REWORK


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    no = refused(case, NAME)
    if no is not None:
        return no
    if not _attends(case):
        return NotApplicable(NAME, "no attention is seen: without it a sequence is split as a batch is")
    c = degree(case, 8)
    if c < 2:
        return NotApplicable(NAME, "one GPU a node: keys and values would go over the network")
    return (Setting(name=NAME, options={"degree": c}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    c = int(options["degree"])
    flexible = scales_with_batch(case.timeline)
    held = case.timeline.take(flexible.nonzero()[0]).peak().bytes
    outputs = [int(case.timeline.size[p.output]) for p in case.passes if p.output >= 0]
    return Change(
        setting=Setting(name=NAME, options={"degree": c}),
        expected=with_batch(case.timeline, 1 / c, case.job.gpu),
        low=None,
        high=None,
        step_time_factor=context_parallel_factor(case, c, max(outputs, default=0)),
        numerics=NUMERICS,
        why=f"each of {c} GPUs computes 1/{c} of every sequence: {size(held)} of activations and inputs are shared",
        time_doubt="from keys and values sent behind attention to all of it seen",
    )


def _attends(case: Case) -> bool:
    """A frame, a class or a line of source that says so."""
    names = {frame.name for frame in case.profile.snapshot.stacks.frames} | set(case.facts.class_of.values())
    if any("scaled_dot_product" in name or "ttention" in name for name in names):
        return True
    kinds = kinds_of(case.timeline, case.facts.class_of, case.profile.snapshot.stacks)
    return bool((kinds == Kind.ATTENTION).any())
