"""One step needs far more than the others: an outlier in the data.

What it means
    Activation memory follows the longest sample of a batch. Training runs for hours, then one batch is several
    times the usual one and does not fit.

Evidence used
    The peak of the step looked at against the median peak of the steps before it, both above what lives between
    steps. At least four complete steps are needed, the first is left out as warm-up.

Example
    Out of memory at step 5,906 of 30,625: one sample was 3.4 times the median length (transformers issue 11388).

Known limits
    A schedule that lengthens sequences on purpose looks the same at its first longer step. Which sample it was is
    not in a snapshot.

What the remedies change
    bucket-by-length: cut or filter the sample, limit tokens per batch, and start with the longest batch so that it
    fails at once. activation-checkpointing lowers every step. compute-in-chunks where what grows is dropped again in
    the forward itself: one image with hundreds of boxes to match.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .survivors import complete_steps, step_of
from .text import size

CODE = "OOM021"
NAME = "outlier-batch"
REMEDIES = ("bucket-by-length", "activation-checkpointing", "gradient-accumulation", "compute-in-chunks")


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    done = complete_steps(profile)
    before = profile.steps[1:done]
    if profile.oom is None or len(before) < thresholds["min_steps"]:
        return None
    base = profile.steps[done - 1].live_bytes
    needs = [max(0, step.peak_bytes - last.live_bytes) for last, step in pairwise(profile.steps[:done])]
    usual = float(np.median(needs))
    now = profile.live_bytes + profile.oom.requested_bytes - base
    if usual <= 0 or now < thresholds["min_ratio"] * usual:
        return None
    mine = case.live(Category.ACTIVATION, Category.TEMPORARY, Category.INPUT)
    blocks = {i: b for i, b in mine.items() if step_of(profile, b.birth) == done}
    total = bytes_of(blocks.values())
    if share(profile, total) < thresholds["min_share"]:
        return None
    step = profile.oom.step if profile.oom.step is not None else profile.steps[done - 1].step + 1
    title = f"Step {step} needs {now / usual:.1f} times the usual: {size(now)} instead of {size(int(usual))}"
    evidence = [f"median of {len(before)} steps, above the {size(base)} that live between steps"]
    if 2 * bytes_of(block for block in blocks.values() if block.passing) >= total:
        evidence.append("most of it is dropped before the forward ends: no graph keeps it")
        return claim(case, blocks, title, thresholds, evidence, (REMEDIES[-1], REMEDIES[0]))
    return claim(case, blocks, title, thresholds, evidence, REMEDIES[:-1])
