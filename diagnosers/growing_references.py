"""Every step leaves a tensor behind, without its graph.

What it means
    Outputs, predictions or losses are collected on the GPU: a list that is appended to, a metric whose state is
    never reset, a trainer that keeps what each step returns, or a `torch.cat` of everything so far.

Evidence used
    One or two blocks of each complete step after the first are alive, always from the same line; or one block that
    the same line makes anew in each step, larger every time. At least three complete steps are needed (seven for
    the second form, which a schedule of growing lengths can imitate: a warning where the job fits).

Example
    469,530 items x 9,997 classes x 4 B = 17.5 GiB of predictions kept through an evaluation (transformers issue
    7232).

Known limits
    Before the first forward of a recorded job nothing is reported: a model that is loaded grows too.
    With few lines per step a small kept graph and a kept output look alike: detach in both cases. Who holds the
    reference is told where `oomdoc run` recorded it on the virtual GPU.

What the remedies change
    offload-outputs: reduce each batch (argmax, a running sum) or move it to the CPU. A smaller batch does not help:
    the total is the size of the data set.
"""

from collections.abc import Mapping

from .growing_block import growing_block
from .holders import tensor_holders
from .interface import Case, Claim, DeviceProfile, Severity
from .judging import bytes_of, claim, share
from .survivors import complete_steps, growth
from .text import percent, size

CODE = "OOM014"
NAME = "growing-references"
REMEDIES = ("offload-outputs", "detach-retained-graph", "no-grad-evaluation")
DECISIVE = True


def _is_set_up(profile: DeviceProfile) -> bool:
    """Before the first forward of a recorded job, what grows is the model that is being loaded."""
    return profile.recording is not None and (profile.oom or profile.peak).phase == "setup"


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    if complete_steps(profile) < 3 or _is_set_up(profile):
        return None
    found = growth(profile, case.live())
    if found is not None:
        total = bytes_of(found.blocks.values())
        if total >= thresholds["min_bytes"] and share(profile, total) >= thresholds["min_share"]:
            title = (
                f"Each step leaves {size(found.bytes_per_step)} behind: {size(total)} from {len(found.steps)} steps,"
                f" {percent(share(profile, total))} of what is live"
            )
            evidence = [f"blocks of steps {found.steps[0]} to {found.steps[-1]} are all alive, from the same line"]
            evidence += tensor_holders(profile, total)
            return claim(case, found.blocks, title, thresholds, evidence, at_least=Severity.ERROR)
    grown = growing_block(profile, case.live())
    if grown is None or grown.bytes[-1] < thresholds["min_bytes"]:
        return None
    blocks = {grown.index: profile.live[grown.index]}
    if share(profile, bytes_of(blocks.values())) < thresholds["min_share"]:
        return None
    title = f"One tensor is made anew in each step and grows: {size(grown.bytes[0])} to {size(grown.bytes[-1])}"
    evidence = [f"{len(grown.bytes)} steps in a row; old and new exist together while it is copied"]
    evidence += tensor_holders(profile, grown.bytes[-1])
    return claim(case, blocks, title, thresholds, evidence, at_least=Severity.WARNING)
