"""Every step leaves its autograd graph behind.

What it means
    Something keeps a tensor with a `grad_fn` from each step: a list of losses, a running sum, a hidden state, an
    attribute, a metric. It holds the whole graph and all activations saved for a backward that does not come.
    Memory grows by the same amount per step until the card is full; a smaller batch only postpones that.

Evidence used
    Blocks alive now that were born in each complete step after the first, on the same stacks, several tensors of a
    forward each. At least three complete steps are needed; the first is left out as warm-up (lazy state,
    workspaces, caches). The line named first is where the user's script makes the graph; what keeps it is on or
    below that line.

Example
    `total = total + validation_loss` outside no_grad keeps 0.5 MiB per step of a small MLP, for ever. A loss that
    was back-propagated first keeps only its scalar, 512 B.

Known limits
    Who holds the reference is not in PyTorch's snapshot; a recording of `oomdoc run` on the virtual GPU names the
    variable, attribute, list, closure or traceback, where it is still there at the end. Steps need a boundary: an
    optimizer step, marks, or allocations that repeat evenly.

What the remedies change
    detach-retained-graph: `.item()` or `.detach()` at that line frees all of it. no-grad-evaluation for a loss that
    is never back-propagated.
"""

from collections.abc import Mapping

from .holders import graph_holders
from .interface import Case, Claim, DeviceProfile, Inconclusive, Severity
from .judging import bytes_of, claim, share, with_script_line
from .survivors import complete_steps, growth
from .text import percent, size

CODE = "OOM006"
NAME = "leaked-graph"
REMEDIES = ("detach-retained-graph", "no-grad-evaluation")
DECISIVE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | Inconclusive | None:
    profile = case.profile
    complete = complete_steps(profile)
    if complete < 3:
        if profile.oom is None or complete == 0:
            return None
        reason = f"{complete} complete steps before memory ran out; three are needed to tell growth from warm-up"
        return Inconclusive(code=CODE, reason=reason)
    found = growth(profile, case.live())
    if found is None or found.graph_blocks_per_step < thresholds["min_blocks_per_step"]:
        return None
    total = bytes_of(found.blocks.values())
    if total < thresholds["min_bytes"] or share(profile, total) < thresholds["min_share"]:
        return None
    title = (
        f"Each step leaves {size(found.bytes_per_step)} of its graph behind: {size(total)} from {len(found.steps)}"
        f" steps, {percent(share(profile, total))} of what is live"
    )
    evidence = [
        f"blocks of steps {found.steps[0]} to {found.steps[-1]} are all alive,"
        f" {found.graph_blocks_per_step} tensors of a graph each",
        *graph_holders(profile),
        *_room(profile, found.bytes_per_step),
    ]
    answer = claim(case, found.blocks, title, thresholds, evidence, at_least=Severity.ERROR)
    return with_script_line(answer, profile, found.blocks.values())


def _room(profile: DeviceProfile, per_step: int) -> list[str]:
    if profile.oom is not None or profile.capacity_bytes is None or not per_step:
        return []
    room = profile.capacity_bytes - (profile.outside_bytes or 0) - (profile.peak.reserved_bytes or 0)
    return [f"about {max(0, room) // per_step} more steps fit"]
