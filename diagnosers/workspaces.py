"""Workspaces of cuBLAS or cuDNN hold much of the memory.

What it means
    cuBLAS keeps 8.1 MiB (32 MiB on Hopper) per handle and stream for good: constant, not a leak. cuDNN takes what
    its fastest algorithm wants, during the call.

Evidence used
    Recorded categories; in a bare snapshot the frames of the workspace functions, and cuBLAS's exact size.

Example
    8,519,680 B stay allocated after everything is deleted (pytorch issue 95668).

Known limits
    Without frames only cuBLAS's own sizes are known.

What the remedies change
    limit-workspace: CUBLAS_WORKSPACE_CONFIG, fewer streams, or torch.backends.cudnn.benchmark = False.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM019"
NAME = "workspaces"
REMEDIES = ("limit-workspace",)


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.WORKSPACE)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"] or total < thresholds["min_bytes"]:
        return None
    title = (
        f"Workspaces of cuBLAS and cuDNN hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    )
    return claim(case, blocks, title, thresholds, [f"{count(len(blocks), 'workspace')}"])
