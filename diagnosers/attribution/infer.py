"""Categories of the live blocks of a bare snapshot, from frames, lifetimes and size multisets."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Action
from ..interface import Category
from .facts import Facts
from .gradients import gradient_sizes
from .multisets import Sizes, bytes_of, copies_of, deal, most_moments, name_copies, wanted
from .older import FEW_GRADIENTS, judge_older
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER
from .replacement import averages, replaced_parameters
from .rules import BUILT, IN_BUCKETS, RECORDED, Verdict, judge, parameter
from .signs import Sign

# How far anything is trusted that rests on phases from the shape of the memory, without a stack (measured).
BY_SHAPE = 0.6
UNKNOWN = Verdict(Category.UNKNOWN, 0.0, "no evidence")
# Casts of smaller weights than this are not told apart from casts of activations.
MIN_CAST_WEIGHT_BYTES = 400_000
MANY_BACKWARDS = 3  # two may be of micro-batches, before they are added up
# One size that is half of a weight's is a coincidence; autocast halves all of them (but embeddings).
CAST_CLASSES = 0.5


def infer(facts: Facts, live: Sequence[int]) -> dict[int, Verdict]:
    """A verdict for each row of `live` (rows of `facts`)."""
    gradients = gradient_sizes(facts)
    older = judge_older(facts, gradients)
    built = _built_parameters(facts)
    built_sizes = Counter(facts.requested[sorted(built)].tolist()) if built else Counter[int]()
    unit: Sizes = gradients or built_sizes or older.unit
    known = built | _rows_of(older.verdicts, Category.PARAMETER)
    known_sizes = Counter(facts.requested[sorted(known)].tolist()) if known else Counter[int]()
    replaced, averaged = replaced_parameters(facts, known), averages(facts, gradients)
    verdicts: dict[int, Verdict] = {}
    for row in live:
        if row in averaged:
            verdicts[row] = Verdict(Category.PARAMETER, 0.6, "one line replaces all of them, in the sizes of gradients")
        elif facts.older[row]:
            verdicts[row] = older.verdicts.get(row, UNKNOWN)
        elif row in replaced:
            verdicts[row] = Verdict(Category.PARAMETER, 0.8, "replaced a parameter in the optimizer's step")
        else:
            verdicts[row] = judge(facts.of(row), RECORDED) or UNKNOWN
    _built_by_others(facts, verdicts, gradients)
    _kept_of_several(facts, verdicts, built_sizes)
    _loaded(facts, verdicts, unit)
    _gradients_in_buckets(facts, verdicts, gradients)
    _finish_cut_runs(facts, verdicts, unit)
    _limit_state(facts, verdicts, Counter(unit) | built_sizes | Counter(older.unit))  # several models: the most of each
    in_buckets = facts.replicated and bytes_of(gradients) < FEW_GRADIENTS * bytes_of(known_sizes)
    _weight_casts(facts, verdicts, known_sizes or unit if in_buckets or not gradients else gradients)
    _made_before_training(facts, verdicts, unit)
    if not facts.phases.told_by_stacks:
        return {row: verdict._replace(share=min(verdict.share, BY_SHAPE)) for row, verdict in verdicts.items()}
    return verdicts


def _rows_of(verdicts: Mapping[int, Verdict], category: Category) -> set[int]:
    return {row for row, verdict in verdicts.items() if verdict.category is category}


def _built_parameters(facts: Facts) -> set[int]:
    """Recorded blocks that the parameter rule knows, alive or not."""
    named = (facts.signs & (Sign.MODULE_MOVE | Sign.MODULE_INIT | Sign.MODULE_LOAD | Sign.SHARD)) != 0
    found = set()
    for row in np.flatnonzero(named & ~facts.older & (facts.birth_phase != BACKWARD)).tolist():
        verdict = parameter(facts.of(row))
        if verdict is not None and verdict.category is Category.PARAMETER:
            found.add(row)
    return found


def _built_by_others(facts: Facts, verdicts: dict[int, Verdict], gradients: Sizes) -> None:
    """Any object has an `__init__`, also a data set: what no layer of torch's made, and no gradient has the size of."""
    for row, verdict in verdicts.items():
        other = verdict.reason == BUILT and not facts.signs[row] & Sign.LAYER_INIT
        if other and gradients and int(facts.requested[row]) not in gradients:
            verdicts[row] = UNKNOWN


def _kept_of_several(facts: Facts, verdicts: dict[int, Verdict], built: Sizes) -> None:
    """What several backwards left, of no parameter's size: `.grad` holds one of each."""
    rounds: dict[int, set[int]] = {}
    rows = [row for row in _rows_of(verdicts, Category.GRADIENT) if facts.birth_phase[row] == BACKWARD]
    for row in rows:
        rounds.setdefault(int(facts.requested[row]), set()).add(int(facts.backwards[facts.lives.birth[row]]))
    for row in rows if not facts.replicated else ():
        size = int(facts.requested[row])
        if len(rounds[size]) >= MANY_BACKWARDS and not {size, 2 * size, size // 2} & built.keys():
            verdicts[row] = Verdict(Category.ACTIVATION, 0.4, "kept of several backwards, of no parameter's size")


def _loaded(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """A checkpoint that was read onto the GPU, by the sizes of the parameters: weights, and their optimizer's state."""
    rows = [r for r, v in verdicts.items() if v is UNKNOWN and facts.signs[r] & Sign.LOAD and not facts.older[r]]
    sizes = Counter(facts.requested[rows].tolist()) if rows else Counter[int]()
    copies = copies_of(unit, sizes)
    if not copies:
        return
    named = name_copies(copies, gradients_there=False, step_seen=True, moments=most_moments(facts.optimizers))
    for size, count in unit.items():
        mine = sorted((r for r in rows if int(facts.requested[r]) == size), key=lambda r: int(facts.lives.birth[r]))
        for row, category in zip(mine, deal(len(mine), wanted(count, named), {}), strict=True):
            if category is not Category.UNKNOWN:
                verdicts[row] = Verdict(category, 0.5, f"loaded, size multiset x{copies}")


def _gradients_in_buckets(facts: Facts, verdicts: dict[int, Verdict], gradients: Sizes) -> None:
    """DDP with gradients as views of its buckets: then no backward leaves any of its own."""
    mine = [
        row
        for row, verdict in verdicts.items()
        if verdict.category is Category.COMMUNICATION and facts.birth_phase[row] != BACKWARD and facts.rounds[row]
    ]
    if facts.replicated and mine and bytes_of(gradients) < FEW_GRADIENTS * int(facts.requested[mine].sum()):
        for row in mine:
            verdicts[row] = Verdict(Category.GRADIENT, 0.6, IN_BUCKETS)


def _finish_cut_runs(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """The recording ends inside a backward or step (an OOM does that): oldest first, by the parameters' sizes."""
    for phase, category, times in ((BACKWARD, Category.GRADIENT, 1), (OPTIMIZER, Category.OPTIMIZER_STATE, 2)):
        left = {size: times * count for size, count in unit.items()}
        for row, verdict in verdicts.items():
            if verdict.category is category:
                left[int(facts.requested[row])] = left.get(int(facts.requested[row]), 0) - 1
        cut = [r for r, v in verdicts.items() if v is UNKNOWN and facts.run_cut[r] and facts.birth_phase[r] == phase]
        for row in sorted(cut, key=lambda r: int(facts.lives.birth[r])):
            size = int(facts.requested[row])
            if left.get(size, 0) > 0:
                left[size] -= 1
                verdicts[row] = Verdict(category, 0.6, "size of a parameter, the recording ends in this phase")
            elif unit:
                verdicts[row] = Verdict(
                    Category.TEMPORARY, 0.5, "no parameter of its size, the recording ends in this phase"
                )


def _limit_state(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """No optimizer keeps more than two moments per parameter: the surplus of hand-written ones are their locals.

    These die in the next step at the latest, and are not what torch.optim makes once per parameter.
    """
    if not unit:
        return
    by_size: dict[int, list[int]] = {}
    for row, verdict in verdicts.items():
        if verdict.category is Category.OPTIMIZER_STATE:
            by_size.setdefault(int(facts.requested[row]), []).append(row)
    for size, rows in by_size.items():
        if size not in unit:
            continue
        locals_ = (r for r in rows if not (facts.older[r] or facts.rounds[r] > 1 or facts.signs[r] & Sign.STATE_INIT))
        recorded = sorted(locals_, key=lambda r: int(facts.lives.birth[r]))
        surplus = len(rows) - 2 * unit[size]
        for row in recorded[max(0, len(recorded) - surplus) :] if surplus > 0 else []:
            verdicts[row] = Verdict(Category.TEMPORARY, 0.6, "more than two per parameter of its size")


def _made_before_training(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """Long-lived blocks of no phase that together have the sizes of the parameters, or twice these (fp32 masters).

    Where nothing has a stack they are the parameters; else those that no other evidence has found.
    """
    rows = [row for row, v in verdicts.items() if v is UNKNOWN and not facts.older[row] and _stays(facts, row)]
    sizes = Counter(facts.requested[rows].tolist()) if rows else Counter[int]()
    if not facts.phases.told_by_stacks:
        for row in rows:
            verdicts[row] = Verdict(Category.PARAMETER, 0.4, "made before the first forward, never freed")
        return
    found = Counter(int(facts.requested[r]) for r, v in verdicts.items() if v.category is Category.PARAMETER)
    for factor, reason in (
        (1, "together the sizes of the gradients"),
        (2, "together twice the sizes of the gradients"),
    ):
        missing = {factor * size: count - found[factor * size] for size, count in unit.items()}
        missing = {size: count for size, count in missing.items() if count > 0}
        if copies_of(missing, sizes) < 1:
            continue
        for row in sorted(rows, key=lambda r: int(facts.lives.birth[r])):
            size = int(facts.requested[row])
            if missing.get(size, 0) > 0 and verdicts[row] is UNKNOWN:
                missing[size] -= 1
                verdicts[row] = Verdict(Category.PARAMETER, 0.6, reason)


def _stays(facts: Facts, row: int) -> bool:
    return int(facts.birth_phase[row]) == OTHER and bool(facts.never_freed[row] or facts.spans_a_phase[row])


def _weight_casts(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """Autocast keeps a half-size copy of each weight until it ends: at most one per weight and forward.

    `unit` are the weights that are trained, where that is known: of a frozen weight it keeps none
    (at::autocast::cached_cast asks for requires_grad), and what backward needs of it is saved as any activation.
    """
    left: dict[tuple[int, int], int] = {}
    native = facts.phases.native_stacks
    halves = {size // 2 for size in unit if size > MIN_CAST_WEIGHT_BYTES and size % 2 == 0}
    mine = np.flatnonzero((facts.birth_phase == FORWARD) & ~facts.older & np.isin(facts.requested, list(halves)))
    cast = (facts.signs[mine] & Sign.CAST) != 0 if native else _operand(facts, mine)
    casts = set(mine[cast].tolist())
    if not casts or (not native and not _most_weights_are_cast(facts, mine[cast], unit)):
        return
    for row in sorted(casts & verdicts.keys(), key=lambda r: int(facts.lives.birth[r])):
        if verdicts[row].category is not Category.ACTIVATION:
            continue
        if not (facts.outlives_run[row] or facts.free_signs[row] & Sign.AUTOCAST_EXIT):
            continue
        size = int(facts.requested[row])
        key = (size, int(facts.run[row]))
        if left.setdefault(key, unit[2 * size]) > 0:
            left[key] -= 1
            share, reason = (
                (0.95, "cast of a weight") if native else (0.7, "half the size of a weight, kept to the end")
            )
            verdicts[row] = Verdict(Category.AUTOCAST_CACHE, share, reason)


def _operand(facts: Facts, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether the same call allocates once more: the cast of an operand comes before the result."""
    allocs = np.flatnonzero(facts.trace.action == Action.ALLOC)
    following = np.searchsorted(allocs, facts.lives.birth[rows], side="right")
    if not len(rows):
        return np.zeros(0, np.bool_)
    place = facts.places[facts.trace.stack[np.append(allocs, allocs[-1])[following]]]
    mine = facts.places[facts.lives.alloc_stack[rows]]
    result: NDArray[np.bool_] = (place == mine) & (mine >= 0) & (following < len(allocs))
    return result


def _most_weights_are_cast(facts: Facts, casts: NDArray[np.intp], unit: Sizes) -> bool:
    """Without C++ frames: in some forward, half-size operands as many as the weights, for half of the weight sizes."""
    large = {size: count for size, count in unit.items() if size > MIN_CAST_WEIGHT_BYTES and size % 2 == 0}
    mine = casts[facts.outlives_run[casts]]
    per_run = Counter(zip(facts.run[mine].tolist(), facts.requested[mine].tolist(), strict=True))
    agreeing: Counter[int] = Counter()
    for (run, half), count in per_run.items():
        if count >= large.get(2 * half, count + 1):
            agreeing[run] += 1
    return bool(large) and max(agreeing.values(), default=0) >= CAST_CLASSES * len(large)
