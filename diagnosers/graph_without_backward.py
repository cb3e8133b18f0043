"""Forward kept its graph and no backward followed.

What it means
    The forward passes ran with gradients on, so every activation was saved for a backward that never came:
    inference, evaluation or generation without `torch.no_grad()` or `torch.inference_mode()`.

Evidence used
    The recording has forwards but no backward and no optimizer step, and a large part of all that a forward
    allocates is alive at once. Under no_grad that part is under a tenth; with gradients 0.38 to 0.67 in 78 public
    recordings. The two largest blocks (logits) are left out of the ratio. A stack below the decorator of no_grad
    settles it the other way.

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

import numpy as np

from ..snapshots.timeline import lifetimes
from .attribution.facts import gather
from .attribution.phases import BACKWARD, FORWARD, OPTIMIZER, run_starts
from .attribution.signs import Sign
from .interface import Case, Category, Claim, DeviceProfile, Severity
from .judging import bytes_of, claim, share
from .text import moment, percent, size

CODE = "OOM011"
NAME = "graph-without-backward"
REMEDIES = ("no-grad-evaluation", "smaller-batch")
FREE = True
LARGEST_LEFT_OUT = 2


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    if not len(profile.device_snapshot.trace) or not _only_forwards(profile):
        return None
    event = profile.oom.event if profile.oom else profile.peak.event
    blocks = {i: b for i, b in case.live(Category.ACTIVATION).items() if not b.signs & Sign.NO_GRAD}
    kept = {i: b for i, b in blocks.items() if b.birth_phase == "forward"}
    if len(kept) < thresholds["min_blocks"]:
        return None
    part = _kept_share(profile, event, kept)
    if part < thresholds["min_kept_share"] or share(profile, bytes_of(blocks.values())) < thresholds["min_share"]:
        return None
    total = bytes_of(blocks.values())
    older = bytes_of(b for b in blocks.values() if b.birth < 0)
    evidence = [
        f"{percent(part)} of what the forward allocated is alive at once; under no_grad it is less than a tenth",
        "the recording has no backward and no optimizer step",
    ]
    if older:
        evidence.append(
            f"{size(older)} of it belong to the graph of an earlier forward, freed only when its output was dropped"
        )
    held = f"{size(total)}, {percent(share(profile, total))} of the live bytes {moment(profile)}"
    title = f"Forward kept its graph and no backward followed: {held}"
    return claim(case, blocks, title, thresholds, evidence, at_least=Severity.WARNING)


def _only_forwards(profile: DeviceProfile) -> bool:
    """Forwards, nothing else, and no sign that training was about to start."""
    if profile.recording is not None and profile.recording.marks:
        phases = {mark.phase for mark in profile.recording.marks}
        if phases & {"backward", "optimizer"} or "forward" not in phases:
            return False
        job = profile.snapshot.recording
        whole = profile.oom is None and not (job and "ended" in job.facts)  # else the last forward was cut off
        return whole or sum(mark.phase == "forward" for mark in profile.recording.marks) > 1
    facts = gather(profile.snapshot, profile.device_snapshot)
    phase = facts.phases.phase
    if np.isin(phase, (BACKWARD, OPTIMIZER)).any() or not (phase == FORWARD).any():
        return False
    if (facts.signs & (Sign.OPTIMIZER_INIT | Sign.OPTIMIZER | Sign.ENGINE)).any():
        return False
    rounds = len(run_starts(facts.phases, FORWARD))
    return profile.oom is None or rounds > 1


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
