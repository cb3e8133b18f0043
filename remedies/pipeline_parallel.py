"""Give each GPU a stage of consecutive blocks (pipeline parallel); micro-batches pass through one after the other.

Applies when: parameters with their gradients and state are a large share of the peak, and the model has many blocks.
Saves: of the blocks' parameters, gradients and optimizer state all but 1/p. Activations: the first stage of 1F1B holds
up to p micro-batches of its blocks at a time, so of a batch in m micro-batches min(p, m) / (p m) of them.
Costs: stages wait at the ends: (p - 1) / m of the step (with v interleaved stages a GPU, 1/v of that; +28 % speed for
interleaved 1F1B on 405B, torchtitan); activations go from stage to stage.
Numerics: identical up to the order of sums.
Conflicts: the first and the last stage have the embedding and the output layer as well; batch statistics.
Frameworks: torch.distributed.pipelining (Schedule1F1B, ScheduleInterleaved1F1B); torchtitan
`pipeline_parallel_degree`; Megatron `--pipeline-model-parallel-size`; DeepSpeed `PipelineModule`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.text import size
from .batch_scaling import scales_with_batch
from .costs.parallel import pipeline_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .parallel_rows import of_blocks, refused, share_in_blocks, with_model_split

NAME = "pipeline-parallel"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REWORK
MICRO_BATCHES_A_STAGE = 4  # a bubble of at most a quarter


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    no = refused(case, NAME)
    if no is not None:
        return no
    stages = case.job.nnodes if case.job.nnodes > 1 else min(case.job.world_size, 8)
    stages = min(stages, len(case.facts.blocks))
    if stages < 2:
        return NotApplicable(NAME, "one block cannot be split into stages")
    batch = case.job.batch_size or case.facts.loader_batch_size or MICRO_BATCHES_A_STAGE * stages
    micro = min(batch, MICRO_BATCHES_A_STAGE * stages)
    return (Setting(name=NAME, options={"stages": stages, "micro_batches": micro}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    p, m = int(options["stages"]), int(options["micro_batches"])
    flexible = scales_with_batch(case.timeline)
    blocks = of_blocks(case)
    new = case.timeline.resized(flexible & blocks, min(p, m) / (p * m)).resized(flexible & ~blocks, 1 / m)
    share = share_in_blocks(case)
    return Change(
        setting=Setting(name=NAME, options={"stages": p, "micro_batches": m}),
        expected=with_model_split(case, new, p, share),
        low=None,
        high=None,
        step_time_factor=pipeline_factor(p, m),
        numerics=NUMERICS,
        why=(
            f"each of {p} stages has 1/{p} of the blocks ({share:.0%} of {size(case.facts.parameter_bytes)}), "
            f"and up to {min(p, m)} of {m} micro-batches at a time; the ends wait {(p - 1) / m:.0%} of the step"
        ),
        doubt="the stage with the embedding or the output layer holds more than the mean",
        time_doubt="interleaved stages wait less, uneven ones more",
    )
