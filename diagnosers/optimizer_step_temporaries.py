"""The optimizer's step makes a copy of the parameters while it works.

What it means
    The foreach implementation of torch.optim (the default on CUDA) computes all parameters at once and keeps lists
    of intermediate results: about one more copy of the parameters, only inside `step()`. It often decides the peak
    of a job with a short context.

Evidence used
    The moment looked at lies in the optimizer's step, and temporaries born there are alive: their bytes per byte of
    parameters are printed.

Example
    A 3.4B model in fp32: 13 GiB of temporaries in a step with a peak of 65 GiB. An update of PyTorch that made
    foreach the default raised one user from 5.5 to 6.8 GB (pytorch issue 97712).

Known limits
    A hand-written optimizer with many intermediates gives the same picture; fused does not apply to it.

What the remedies change
    fused-optimizer: fused=True (or foreach=False, slower) removes the copy; the numbers it computes are the same up
    to rounding. Nothing else in the job changes, so it comes first.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import moment, percent, size

CODE = "OOM007"
NAME = "optimizer-step-temporaries"
REMEDIES = ("fused-optimizer", "fsdp", "cpu-offload")
FREE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    if (profile.oom or profile.peak).phase != "optimizer":
        return None
    blocks = {i: b for i, b in case.live(Category.TEMPORARY).items() if b.birth_phase == "optimizer"}
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if part < thresholds["min_share"]:
        return None
    parameters = profile.bytes_of(Category.PARAMETER)
    evidence = ["freed when the step ends"]
    if parameters:
        evidence.insert(0, f"{total / parameters:.2f} bytes of temporaries per byte of parameters")
    title = (
        f"optimizer.step itself needs {size(total)} for a moment, {percent(part)} of what was live {moment(profile)}"
    )
    return claim(case, blocks, title, thresholds, evidence)
