"""The graph of the previous iteration is still alive.

What it means
    A name that the loop binds again only later (`loss`, `logits`, `outputs`) keeps the last iteration's tensors
    while the next forward runs, so the peak holds two of them. It does not grow.

Evidence used
    Activations alive now that were born in the step before this one, or that are older than the recording and are
    dropped by a plain line of Python during a later forward.

Example
    A 2.7B model held 26.9 of 66.6 GiB of the previous graph when the next forward peaked.

Known limits
    In a recording of a single iteration only older blocks that are freed later tell; those that are never freed
    stay unknown.

What the remedies change
    release-outputs: `del logits, loss` at the end of the iteration, or keep `loss.item()`. Nothing that is computed
    changes.
"""

from collections.abc import Mapping

import numpy as np

from .attribution.facts import gather
from .attribution.phases import BACKWARD
from .interface import Case, Category, Claim, DeviceProfile, LiveBlock, Severity
from .judging import bytes_of, claim, share
from .serving import serves
from .survivors import complete_steps, step_of
from .text import count, moment, percent, size

CODE = "OOM015"
NAME = "previous-graph"
REMEDIES = ("release-outputs", "detach-retained-graph")
FREE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    if (profile.oom or profile.peak).phase not in ("forward", "backward", "other", None):
        return None
    if profile.oom is not None and not _has_worked_back(profile) and not serves(profile):
        return None  # two models' forwards may come before the first backward
    current = complete_steps(profile)
    own = _of_their_backward(profile)
    blocks: dict[int, LiveBlock] = {}
    for index, block in case.live(Category.ACTIVATION).items():
        if (block.address, block.birth) in own:
            continue
        older = block.birth < 0 and block.death < len(profile.device_snapshot.trace)
        previous = block.birth >= 0 and current > 0 and step_of(profile, block.birth) == current - 1
        if older or previous:
            blocks[index] = block
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if part < thresholds["min_share"] or total < thresholds["min_bytes"]:
        return None
    title = (
        f"{size(total)} of the previous iteration were still alive {moment(profile)}, {percent(part)} of the live bytes"
    )
    evidence = [f"{count(len(blocks), 'block')}, dropped only after the next forward had begun"]
    fits = Severity.WARNING if part >= thresholds["warn_share"] else Severity.NOTE
    return claim(case, blocks, title, thresholds, evidence, at_least=fits)


def _has_worked_back(profile: DeviceProfile) -> bool:
    phase = gather(profile.snapshot, profile.device_snapshot).phases.phase
    return bool((phase == BACKWARD).any()) or any(block.birth < 0 for block in profile.live)


def _of_their_backward(profile: DeviceProfile) -> set[tuple[int, int]]:
    """Address and birth of what the first backward in its life drops, as it should: steps may begin anywhere."""
    facts = gather(profile.snapshot, profile.device_snapshot)
    rows = np.flatnonzero((facts.rounds <= 1) & (facts.death_phase == BACKWARD) & ~facts.never_freed)
    return set(zip(facts.lives.address[rows].tolist(), facts.lives.birth[rows].tolist(), strict=True))
