"""Forward kept its graph and no backward followed.

What it means
    The forward passes ran with gradients on, so every activation was saved for a backward that never came:
    inference, evaluation or generation without `torch.no_grad()` or `torch.inference_mode()`.

Evidence used
    The recording has forwards but no backward and no optimizer step, and a large part of all that a forward
    allocates is alive at once. Under no_grad that part is under a tenth; with gradients 0.38 to 0.67 in 78 public
    recordings. The two largest blocks (logits) are left out of the ratio. A stack below the decorator of no_grad
    settles it the other way.
    In a job that trains, the same is asked of the forwards since its last backward, where they are more than twice as
    many as training ever made for one backward: a validation that keeps its losses.

Example
    A 2.7B model at context 512: 28.9 GiB of activations kept per forward, and those of the previous one until
    `logits` is bound again.

Known limits
    A benchmark that measures a forward with gradients on purpose looks the same. A job that runs out of memory in
    its first forward, or fails there, has had no backward yet, so one complete forward is needed before. A
    single-layer model can be under the ratio.

What the remedies change
    no-grad-evaluation: with torch.inference_mode() around the loop the activations of a layer are free when the
    next one has run; the outputs are the same.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..snapshots.model import Action
from ..snapshots.timeline import lifetimes
from .attribution.facts import gather
from .attribution.phases import BACKWARD, FORWARD, OPTIMIZER, run_starts
from .attribution.signs import Sign
from .interface import Case, Category, Claim, DeviceProfile, LiveBlock, Severity
from .judging import bytes_of, claim, share, with_script_line
from .text import moment, percent, size

CODE = "OOM011"
NAME = "graph-without-backward"
REMEDIES = ("no-grad-evaluation", "smaller-batch")
FREE = True
LARGEST_LEFT_OUT = 2


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    if not len(profile.device_snapshot.trace):
        return None
    event = profile.oom.event if profile.oom else profile.peak.event
    live = {i: b for i, b in case.live(Category.ACTIVATION).items() if not b.signs & Sign.NO_GRAD}
    if not _only_forwards(profile):
        return _beside_training(case, live, event, thresholds)
    kept = {i: b for i, b in live.items() if b.birth_phase == "forward"}
    part = _kept_share(profile, event, kept)
    if len(kept) < thresholds["min_blocks"] or part < thresholds["min_kept_share"]:
        return None
    evidence = [
        f"{percent(part)} of what the forward allocated is alive at once; under no_grad it is less than a tenth",
        "the recording has no backward and no optimizer step",
    ]
    older = bytes_of(b for b in live.values() if b.birth < 0)
    if older:
        evidence.append(
            f"{size(older)} of it belong to the graph of an earlier forward, freed only when its output was dropped"
        )
    return _claim(case, live, evidence, thresholds)


def _claim(
    case: Case, blocks: Mapping[int, LiveBlock], evidence: list[str], thresholds: Mapping[str, float]
) -> Claim | None:
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    held = f"{size(total)}, {percent(part)} of the live bytes {moment(case.profile)}"
    title = f"Forward kept its graph and no backward followed: {held}"
    return claim(case, blocks, title, thresholds, evidence, at_least=Severity.WARNING)


def _beside_training(
    case: Case, live: Mapping[int, LiveBlock], event: int, thresholds: Mapping[str, float]
) -> Claim | None:
    """The forwards since the last backward are many more than training makes for one, and all their graphs live."""
    stretch = _since_backward(case.profile, event)
    if stretch is None or len(stretch.forwards) < thresholds["min_forwards"] + 2 * stretch.usual:
        return None
    by_stack: dict[int, dict[int, int]] = {}  # -> block -> the forward that made it
    for index, block in live.items():
        if block.birth >= stretch.forwards[0] and block.stack >= 0:
            made = int(np.searchsorted(stretch.forwards, block.birth, side="right"))
            by_stack.setdefault(block.stack, {})[index] = made
    every = [mine for mine in by_stack.values() if len(set(mine.values())) >= thresholds["min_forwards"]]
    if len(every) < thresholds["min_lines"]:
        return None
    blocks = {index: live[index] for mine in every for index in mine}
    evidence = [
        f"{len(stretch.forwards)} forwards since the last backward, their graphs all alive; training makes"
        f" {stretch.usual} for each backward at most"
    ]
    answer = _claim(case, blocks, evidence, thresholds)
    return with_script_line(answer, case.profile, blocks.values()) if answer is not None else None


class Stretch(NamedTuple):
    """What follows the last backward or step."""

    forwards: NDArray[np.int64]  # their first events
    usual: int  # the most forwards that came between two backwards before


def _since_backward(profile: DeviceProfile, event: int) -> Stretch | None:
    """None where nothing was trained before `event`."""
    if profile.recording is not None and profile.recording.marks:
        marks = [mark for mark in profile.recording.marks if mark.event <= event]
        forwards = np.array([mark.event for mark in marks if mark.phase == "forward"], np.int64)
        ends = [mark.event for mark in marks[1:]]
        worked = [
            end for mark, end in zip(marks, [*ends, event + 1], strict=True) if mark.phase in ("backward", "optimizer")
        ]
        backwards = np.array(worked, np.int64)
    else:
        phases = gather(profile.snapshot, profile.device_snapshot).phases
        forwards = run_starts(phases, FORWARD)
        mine = np.isin(phases.phase, (BACKWARD, OPTIMIZER))
        backwards = np.unique(phases.run_end[mine])
    forwards, backwards = forwards[forwards <= event], backwards[backwards <= event]
    if not len(backwards):
        return None
    counts = np.bincount(np.searchsorted(backwards, forwards), minlength=len(backwards) + 1)
    return Stretch(forwards[forwards > backwards[-1]], int(counts[:-1].max(initial=0)))


def _only_forwards(profile: DeviceProfile) -> bool:
    """Forwards, nothing else, and no sign that training was about to start."""
    if profile.recording is not None and profile.recording.marks:
        phases = {mark.phase for mark in profile.recording.marks}
        if phases & {"backward", "optimizer"} or "forward" not in phases:
            return False
        job = profile.snapshot.recording
        whole = not _ran_out(profile) and not (job and "ended" in job.facts)  # else the last forward was cut off
        return whole or sum(mark.phase == "forward" for mark in profile.recording.marks) > 1
    facts = gather(profile.snapshot, profile.device_snapshot)
    phase = facts.phases.phase
    if np.isin(phase, (BACKWARD, OPTIMIZER)).any() or not (phase == FORWARD).any():
        return False
    if (facts.signs & (Sign.OPTIMIZER_INIT | Sign.OPTIMIZER | Sign.ENGINE)).any():
        return False
    rounds = len(run_starts(facts.phases, FORWARD))
    return not _ran_out(profile) or rounds > 1


def _ran_out(profile: DeviceProfile) -> bool:
    """Whether the process ended out of memory, on whichever of its devices: then no backward can follow on any."""
    others = (device for device in profile.snapshot.devices if device.device != profile.device)
    return profile.oom is not None or any((device.trace.action == Action.OOM).any() for device in others)


def _kept_share(profile: DeviceProfile, event: int, kept: Mapping[int, object]) -> float:
    """Bytes of the kept blocks over all that the same iteration allocated, the largest left out of both."""
    lives = lifetimes(profile.device_snapshot)
    start = max((step.event for step in profile.steps if step.event < event), default=-1)
    mine = [profile.live[i].requested_bytes for i in kept if profile.live[i].birth > start]
    sizes = np.sort(np.asarray(mine, np.int64))[: -LARGEST_LEFT_OUT or None]
    inside = (lives.birth > start) & (lives.birth <= event)
    largest = sum(sorted(mine)[-LARGEST_LEFT_OUT:])
    allocated = int(lives.requested[inside].sum()) - largest
    return int(sizes.sum()) / allocated if allocated > 0 else 0.0
