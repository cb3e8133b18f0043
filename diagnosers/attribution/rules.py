"""One rule per kind of evidence: facts of a block -> category, how far to trust it, and the reason; or None.

`share` is the precision that the rule had on 78 public recordings, rounded down (their code was clean single-node
training, so nothing here prints more). A rule that was wrong more often than right is not here: its blocks stay
unknown.
"""

from collections.abc import Callable
from typing import NamedTuple

from ..interface import Category
from .facts import BlockFacts
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, ZERO_GRAD
from .signs import Sign

CUBLAS_WORKSPACE_BYTES = 8_519_680  # below sm_90: 4096 KiB x 2 + 16 KiB x 8 (CUBLAS_WORKSPACE_CONFIG's default)
HOPPER_WORKSPACE_BYTES = 33_554_432  # sm_90 and later
BUILT = "made while the model was built, long lived"
IN_BUCKETS = "no backward leaves gradients: they are views of DDP's buckets"
FREED_BY_BACKWARD = "older than the recording, freed by backward"
DROPPED_BY_PYTHON = "older than the recording, dropped by a line of Python"


class Verdict(NamedTuple):
    category: Category
    share: float
    reason: str


Rule = Callable[[BlockFacts], Verdict | None]


def workspace(block: BlockFacts) -> Verdict | None:
    if block.signs & Sign.CUBLAS:
        return Verdict(Category.WORKSPACE, 0.97, "cuBLAS or cuDNN frame")
    if block.signs & (Sign.CONVOLUTION | Sign.RECURRENT) and block.freed_where_born and not block.older:
        return Verdict(Category.WORKSPACE, 0.7, "a convolution or an RNN made and dropped it")
    if block.birth_phase == BACKWARD and block.scratch:
        return Verdict(Category.WORKSPACE, 0.7, "dropped at once in the backward of a model with convolutions")
    if block.birth_phase == FORWARD and block.scratch and not block.framed:
        return Verdict(Category.WORKSPACE, 0.5, "dropped in a forward before anything else was made")
    if block.size == CUBLAS_WORKSPACE_BYTES and (block.never_freed or block.older):
        return Verdict(Category.WORKSPACE, 0.8 if block.older else 0.97, "size of the cuBLAS workspace, long lived")
    return None


def kernel_tuning(block: BlockFacts) -> Verdict | None:
    if block.signs & Sign.TUNING:
        return Verdict(Category.TEMPORARY, 0.8, "a kernel was being tuned")
    return None


def kv_cache(block: BlockFacts) -> Verdict | None:
    """Keys and values kept for the next token. In a training forward the same class only passes them through."""
    if block.signs & Sign.KV_CACHE and block.outlives_run and not block.meets_backward:
        return Verdict(Category.KV_CACHE, 0.7, "made by a key/value cache, outlives its forward")
    return None


def communication(block: BlockFacts) -> Verdict | None:
    if not block.signs & Sign.COLLECTIVE:
        return None
    if block.birth_phase == BACKWARD and block.outlives_run and not block.run_cut:
        return Verdict(Category.GRADIENT, 0.7, "output of a reduction, outlives its backward")
    return Verdict(Category.COMMUNICATION, 0.9, "made by a collective")


def optimizer_built(block: BlockFacts) -> Verdict | None:
    if block.signs & Sign.OPTIMIZER_INIT and (block.spans_a_phase or block.never_freed):
        return Verdict(Category.OPTIMIZER_STATE, 0.9, "made while the optimizer was built")
    return None


def step(block: BlockFacts) -> Verdict | None:
    if block.birth_phase != OPTIMIZER:
        return None
    if block.outlives_run and not block.run_cut:
        return Verdict(Category.OPTIMIZER_STATE, 0.9, "born in the optimizer's step, outlives it")
    if block.run_cut:
        return None
    return Verdict(Category.TEMPORARY, 0.9, "born and freed in the optimizer's step")


def recomputation(block: BlockFacts) -> Verdict | None:
    if block.birth_phase == BACKWARD and block.signs & Sign.RECOMPUTE:
        return Verdict(Category.ACTIVATION, 0.6, "recomputed in backward by activation checkpointing")
    return None


def gradient(block: BlockFacts) -> Verdict | None:
    if block.birth_phase != BACKWARD:
        return None
    if not block.never_freed and block.death_phase == BACKWARD and not block.dies_in_its_backward:
        return Verdict(Category.ACTIVATION, 0.6, "made by a backward, freed by a later one: a graph of gradients")
    if block.outlives_run and not block.run_cut and not block.dies_in_its_backward:
        if block.signs & Sign.ACCUMULATE:
            return Verdict(Category.GRADIENT, 0.97, "AccumulateGrad frame, outlives its backward")
        return Verdict(Category.GRADIENT, 0.9, "born in backward, outlives it")
    if block.run_cut and not block.dies_in_its_backward:
        if block.signs & Sign.ACCUMULATE:
            return Verdict(Category.GRADIENT, 0.9, "AccumulateGrad frame, the recording ends in this backward")
        return None
    return Verdict(Category.TEMPORARY, 0.9, "born and freed in backward")


def parameter(block: BlockFacts) -> Verdict | None:
    if not (block.spans_a_phase or block.never_freed) or block.signs & (Sign.OPTIMIZER_INIT | Sign.LOADER):
        return None
    moved = block.signs & (Sign.MODULE_MOVE | Sign.MODULE_LOAD | Sign.SHARD)
    built = block.signs & Sign.MODULE_INIT and block.birth_phase == OTHER
    if not moved and not built:
        return None
    if block.signs & Sign.BUFFER:
        return Verdict(Category.BUFFER, 0.6, "made or moved with its module, by a line for buffers or tables")
    if moved:
        return Verdict(Category.PARAMETER, 0.95, "moved or loaded with its module, long lived")
    return Verdict(Category.PARAMETER, 0.85, BUILT)


def copied(block: BlockFacts) -> Verdict | None:
    """deepcopy of a model or of its state dict: averages, checkpoints, reference models."""
    if block.signs & Sign.COPY and (block.spans_a_phase or block.never_freed) and block.birth_phase == OTHER:
        return Verdict(Category.PARAMETER, 0.6, "made by deepcopy, long lived")
    return None


def forward(block: BlockFacts) -> Verdict | None:
    if block.birth_phase == FORWARD:
        return Verdict(Category.ACTIVATION, 0.9, "born in forward")
    return None


def around_backward(block: BlockFacts) -> Verdict | None:
    """Outside any module and any step: the loss and functional models."""
    if block.birth_phase not in (OTHER, ZERO_GRAD):
        return None
    if block.signs & (Sign.LOADER | Sign.CREATION):
        return Verdict(Category.INPUT, 0.5, "made at once on the device, or by a data loader")
    by_backward = not block.never_freed and block.death_phase == BACKWARD
    if by_backward and block.after_forward and block.meets_backward:
        return Verdict(Category.ACTIVATION, 0.6, "made after a forward, freed by backward")
    if block.feeds_forward:
        return Verdict(Category.INPUT, 0.5, "made before each forward, by the same line")
    if by_backward:
        if block.before_forward and not block.after_forward:
            return Verdict(Category.INPUT, 0.5, "made before a forward, freed by its backward")
        return Verdict(Category.ACTIVATION, 0.6, "freed by backward")
    if block.after_forward and block.before_backward:
        return Verdict(Category.ACTIVATION, 0.6, "between a forward and its backward")
    return None


def short_lived(block: BlockFacts) -> Verdict | None:
    if not block.older and not block.never_freed and not block.spans_a_phase:
        return Verdict(Category.TEMPORARY, 0.4, "freed before the next phase")
    return None


RECORDED: tuple[Rule, ...] = (
    kernel_tuning,
    workspace,
    kv_cache,
    communication,
    optimizer_built,
    step,
    recomputation,
    gradient,
    parameter,
    copied,
    forward,
    around_backward,
    short_lived,
)


def freed_after_recording_began(block: BlockFacts) -> Verdict | None:
    """Blocks older than the recording: the line that drops them is often their only stack."""
    if block.never_freed:
        return None
    if block.death_phase == ZERO_GRAD:
        return Verdict(Category.GRADIENT, 0.95, "older than the recording, freed by zero_grad")
    if block.death_phase == OPTIMIZER:
        return Verdict(Category.OPTIMIZER_STATE, 0.75, "older than the recording, replaced in the optimizer's step")
    if block.free_signs & Sign.AUTOCAST_EXIT:
        return Verdict(Category.AUTOCAST_CACHE, 0.9, "older than the recording, freed when autocast ended")
    if block.free_signs & Sign.RESHARD:
        return Verdict(Category.COMMUNICATION, 0.8, "older than the recording, gathered parameters that FSDP dropped")
    if block.free_signs & Sign.COLLECTIVE and block.death_phase == BACKWARD:
        return Verdict(Category.TEMPORARY, 0.6, "older than the recording, given to a reduction")
    if block.rounds > 1:
        return None  # no graph outlives the iteration after its own
    if block.death_phase == BACKWARD:
        return Verdict(Category.ACTIVATION, 0.9, FREED_BY_BACKWARD)
    if block.free_signs & Sign.PYTHON:
        return Verdict(Category.ACTIVATION, 0.8, DROPPED_BY_PYTHON)
    return None


def older_with_stack(block: BlockFacts) -> Verdict | None:
    """A few older blocks carry the stack of an earlier recording of the same process."""
    if not block.framed:
        return None
    if block.signs & (Sign.MODULE_MOVE | Sign.MODULE_LOAD | Sign.SHARD) and not block.signs & Sign.OPTIMIZER:
        if block.signs & Sign.BUFFER:
            return Verdict(Category.BUFFER, 0.6, "a buffer that was moved with its module, before this recording")
        return Verdict(Category.PARAMETER, 0.8, "moved or loaded with its module, before this recording")
    if block.signs & Sign.KV_CACHE:
        return Verdict(Category.KV_CACHE, 0.6, "made by a key/value cache, before this recording")
    if block.signs & Sign.OPTIMIZER:
        return Verdict(Category.OPTIMIZER_STATE, 0.7, "born in an optimizer's step, before this recording")
    if block.signs & Sign.ACCUMULATE:
        return Verdict(Category.GRADIENT, 0.8, "AccumulateGrad frame, before this recording")
    if block.signs & Sign.COLLECTIVE:
        return Verdict(Category.COMMUNICATION, 0.8, "made by a collective, before this recording")
    if block.signs & Sign.FORWARD:
        return Verdict(Category.ACTIVATION, 0.6, "born in a forward before this recording")
    return None


OLDER: tuple[Rule, ...] = (workspace, freed_after_recording_began, older_with_stack)


def judge(block: BlockFacts, rules: tuple[Rule, ...]) -> Verdict | None:
    """The first rule that has something to say."""
    for rule in rules:
        verdict = rule(block)
        if verdict is not None:
            return verdict
    return None
