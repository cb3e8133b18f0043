"""Gradients of the last step are alive while the next forward runs.

What it means
    Nobody needs them: they were read in `optimizer.step()`. zero_grad stands after forward instead of before it, or
    fills with zeros (set_to_none=False) instead of dropping.

Evidence used
    The moment looked at lies in a forward, no backward has run since the last step ended, and gradients born before
    it are alive. Gradient accumulation does not count: there a backward ran in the same step.

Example
    nnU-Net went from 7,800 to 7,500 MB by dropping gradients right after the step.

Known limits
    Gradients older than the recording count only where zero_grad frees them later in it.

What the remedies change
    zero-grad-early: `optimizer.zero_grad(set_to_none=True)` right after `optimizer.step()`. It saves exactly these
    bytes at the peak of the forward, and nothing that is computed changes.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .survivors import complete_steps, step_of
from .text import percent, size

CODE = "OOM022"
NAME = "idle-gradients"
REMEDIES = ("zero-grad-early",)
FREE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    if (profile.oom or profile.peak).phase != "forward":
        return None
    current = complete_steps(profile)
    events = len(profile.device_snapshot.trace)
    live = case.live(Category.GRADIENT)
    if any(b.birth >= 0 and step_of(profile, b.birth) == current for b in live.values()):
        return None
    blocks = {
        i: b
        for i, b in live.items()
        if (b.birth >= 0 and current > 0) or (b.birth < 0 and b.death < events and "zero_grad" in b.reason)
    }
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if part < thresholds["min_share"]:
        return None
    title = f"{size(total)} of last step's gradients are alive in the next forward, {percent(part)} of the live bytes"
    return claim(case, blocks, title, thresholds, ["last read in optimizer.step"])
