"""A model that has not been used lies on the card.

What it means
    Models were moved to the GPU before they are needed, or stay after they are: a text encoder, a decoder, a reference
    model, the model to be trained while its inputs are still being made.

Evidence used
    Recorded parameters that belong to no module which was called until the moment looked at, by the line that moved
    them to the card.

Example
    Training needed less than 12 GB, making the latents more than 16: the transformer was on the GPU already (peft
    pull 3395).

Known limits
    Needs a recording of `oomdoc run`. A model that was used once, hours ago, counts as used.

What the remedies change
    move-when-used: `.to(device)` right before the first use, `.to("cpu")` after the last; offload hooks
    (`enable_model_cpu_offload`) do it for you.
"""

from collections.abc import Mapping

from .call_sites import Lines
from .interface import Case, Category, Claim, Location
from .judging import bytes_of, claim, share
from .text import moment, percent, size

CODE = "OOM029"
NAME = "idle-model"
REMEDIES = ("move-when-used",)
FREE = True
# The bytes of idle lines and those that no called module owns agree but for so much of them.
AGREEING = 0.02


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    recording = profile.snapshot.recording
    parameters = recording.facts.get("parameters") if recording else None
    if not isinstance(parameters, Mapping) or parameters.get("sharded"):
        return None
    used = parameters.get("bytes")
    if not isinstance(used, int) or not used:
        return None
    mine = case.live(Category.PARAMETER)
    idle = bytes_of(mine.values()) - used
    if idle < thresholds["min_share"] * profile.live_bytes:
        return None
    lines = Lines(profile.snapshot)
    by_line: dict[Location | None, set[int]] = {}
    for index, block in mine.items():
        by_line.setdefault(lines.of(block.stack), set()).add(index)
    blocks: set[int] = set()
    for _, indices in sorted(by_line.items(), key=lambda item: -bytes_of(mine[i] for i in item[1])):
        if bytes_of(mine[i] for i in blocks | indices) <= (1 + AGREEING) * idle:
            blocks |= indices
    if bytes_of(mine[i] for i in blocks) < (1 - AGREEING) * idle:
        return None
    found = {i: mine[i] for i in blocks}
    part = percent(share(profile, idle))
    title = f"Models that were not called hold {size(idle)}, {part} of what was live {moment(profile)}"
    evidence = [f"{size(used)} of parameters belong to models that were"]
    return claim(case, found, title, thresholds, evidence)
