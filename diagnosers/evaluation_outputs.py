"""An evaluation keeps the outputs of all its batches on the GPU.

What it means
    Predictions are collected batch by batch: a list, or a `torch.cat` of everything so far, which needs old and new at
    once. It grows with the size of the data set and is dropped when the evaluation ends, so training alone fits.

Evidence used
    Since the last backward, one or two blocks of each forward are alive, always from the same line; or one block that
    the same line made anew after each forward, larger every time. At least four forwards are needed.

Example
    469,530 items x 9,997 classes x 4 B = 17.5 GiB of logits, twice at the last concatenation (transformers issue 7232).

Known limits
    A rollout or a generation that collects its results looks the same: there too they can be reduced or moved.

What the remedies change
    eval-accumulation: move what was collected to the host every few batches (`eval_accumulation_steps` of the Hugging
    Face Trainer), or keep only what the metric needs (`preprocess_logits_for_metrics`, an argmax, a running sum).
    A smaller evaluation batch does not help: the total is the size of the data set.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..snapshots.timeline import lifetimes
from .attribution.facts import gather
from .attribution.phases import BACKWARD, FORWARD, run_starts
from .holders import tensor_holders
from .interface import Case, Claim, DeviceProfile, LiveBlock, Severity
from .judging import bytes_of, claim, share
from .survivors import PERMANENT
from .text import count, moment, percent, size

CODE = "OOM025"
NAME = "evaluation-outputs"
REMEDIES = ("eval-accumulation", "offload-outputs")
DECISIVE = True
MIN_FORWARDS = 4


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    forwards = _forwards_since_backward(profile)
    if len(forwards) < MIN_FORWARDS:
        return None
    live = {i: b for i, b in case.live().items() if b.category not in PERMANENT and b.birth >= forwards[0]}
    blocks = _kept(live, forwards) or _regrown(profile, live, forwards)
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if part < thresholds["min_share"] or total < thresholds["min_bytes"]:
        return None
    title = f"The outputs of {len(forwards)} batches are kept: {size(total)}, {percent(part)} of what was live"
    evidence = [f"{count(len(blocks), 'block')} {moment(profile)}, no backward since the first of these forwards"]
    evidence += tensor_holders(profile, total)
    return claim(case, blocks, f"{title} {moment(profile)}", thresholds, evidence, at_least=Severity.WARNING)


def _forwards_since_backward(profile: DeviceProfile) -> NDArray[np.intp]:
    """Where the calls of the model began that no backward followed, up to the moment looked at."""
    facts = gather(profile.snapshot, profile.device_snapshot)
    event = profile.oom.event if profile.oom else profile.peak.event
    trained = np.flatnonzero(facts.phases.phase[: event + 1] == BACKWARD)
    after = int(trained[-1]) if len(trained) else -1
    starts = run_starts(facts.phases, FORWARD)
    starts = starts[(starts > after) & (starts <= event)]
    stacks = profile.device_snapshot.trace.stack[starts]
    return starts[stacks == np.bincount(stacks + 1).argmax() - 1] if len(starts) else starts


def _kept(live: Mapping[int, LiveBlock], forwards: NDArray[np.intp]) -> dict[int, LiveBlock]:
    """Blocks of stacks that left something of all but the newest of these forwards, a tensor or two of each."""
    by_stack: dict[int, list[int]] = {}
    for index, block in live.items():
        if block.stack >= 0:
            by_stack.setdefault(block.stack, []).append(index)
    found: dict[int, LiveBlock] = {}
    for mine in by_stack.values():
        of_forward = np.searchsorted(forwards, [live[i].birth for i in mine], side="right")
        if len(np.unique(of_forward)) >= len(forwards) - 1 and len(mine) <= 2 * len(forwards):
            found.update({i: live[i] for i in mine})
    return found


def _regrown(profile: DeviceProfile, live: Mapping[int, LiveBlock], forwards: NDArray[np.intp]) -> dict[int, LiveBlock]:
    """One line's block, made anew after each forward from the one before it, and larger every time."""
    lives = lifetimes(profile.device_snapshot)
    found: dict[int, LiveBlock] = {}
    for index, block in live.items():
        made = np.flatnonzero((lives.alloc_stack == block.stack) & (lives.birth >= forwards[0]))
        made = made[lives.birth[made] <= block.birth] if block.stack >= 0 else made[:0]
        sizes = lives.requested[made]
        copied = (lives.free_requested[made[:-1]] > lives.birth[made[1:]]).all()
        if copied and len(forwards) - 2 <= len(made) <= len(forwards) and len(made) > 2 and (np.diff(sizes) > 0).all():
            found[index] = block
    return found
