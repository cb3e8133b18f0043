"""Copies of the model are kept on the card.

What it means
    A deepcopy or a snapshot of the state dict (averaging, checkpoints, a reference or target model) lies beside the
    model. Or the models of earlier rounds are still there: folds of a cross-validation, trials of a search, whose
    optimizers keep their state too.

Evidence used
    Live blocks whose stack has deepcopy in it and that are long lived. Parameters that one line put on the card in
    several rounds, with training in between, while the gradients of the latest round are those of the newest alone;
    state and gradients that are older than the newest model go with the others.

Example
    An average of the weights that deep-copies itself at each checkpoint grew by one model per checkpoint
    (ema-pytorch issue 35).

Known limits
    A second model that is built by its own constructor, before anything was trained, counts as parameters.

What the remedies change
    copy-to-host: keep the copy on the CPU (`{k: v.cpu() for k, v in model.state_dict().items()}`).
    release-models: keep a round's score, and its weights on the CPU, not the model and its optimizer.
"""

from collections.abc import Mapping

import numpy as np

from .attribution.facts import gather
from .attribution.phases import BACKWARD, run_starts
from .attribution.signs import Sign
from .interface import Case, Category, Claim, LiveBlock, Severity
from .judging import bytes_of, claim, share
from .text import count, moment, percent, size

CODE = "OOM023"
NAME = "model-copies"
REMEDIES = ("copy-to-host", "release-models")
FREE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    earlier = _earlier_rounds(case, thresholds)
    if earlier is not None:
        return earlier
    mine = case.live(Category.PARAMETER, Category.BUFFER, Category.UNKNOWN)
    blocks = {i: b for i, b in mine.items() if b.signs & Sign.COPY}
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"]:
        return None
    title = f"Copies made by deepcopy hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, [f"{count(len(blocks), 'tensor')}"], REMEDIES[:1])


def _earlier_rounds(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    facts = gather(case.profile.snapshot, case.profile.device_snapshot)
    backwards = run_starts(facts.phases, BACKWARD)
    rounds: dict[int, dict[int, list[LiveBlock]]] = {}  # stack -> backwards before -> blocks
    for block in case.live(Category.PARAMETER, Category.BUFFER).values():
        copied = block.signs & Sign.COPY or block.birth_phase == "optimizer"
        if block.birth >= 0 and block.stack >= 0 and not copied:
            before = int(np.searchsorted(backwards, block.birth))
            rounds.setdefault(block.stack, {}).setdefault(before, []).append(block)
    newest = max((max(mine) for mine in rounds.values() if len(mine) >= thresholds["min_rounds"]), default=None)
    if newest is None:
        return None
    models = max(len(mine) for mine in rounds.values() if newest in mine)
    own = bytes_of(block for mine in rounds.values() for block in mine.get(newest, ()))
    since = min(block.birth for mine in rounds.values() for block in mine.get(newest, ()))
    made = (facts.birth_phase == BACKWARD) & facts.outlives_run & ~facts.dies_in_its_backward
    made &= facts.lives.birth > since
    trained = np.bincount(facts.backwards[facts.lives.birth[made]], facts.requested[made]).max(initial=0)
    if trained > thresholds["trained_ratio"] * own:
        return None  # parts of one model that grows
    kinds = (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE, Category.GRADIENT)
    blocks = {index: block for index, block in case.live(*kinds).items() if 0 <= block.birth < since}
    total = bytes_of(blocks.values())
    if share(case.profile, total) < thresholds["min_share"]:
        return None
    held = f"{size(total)}, {percent(share(case.profile, total))} of what was live {moment(case.profile)}"
    title = f"The models of {models - 1} earlier rounds hold {held}"
    evidence = [f"one line has put {models} of them on the card, with training in between; only the newest is trained"]
    return claim(case, blocks, title, thresholds, evidence, REMEDIES[::-1], Severity.WARNING)
