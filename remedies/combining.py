"""Combinations of remedies: subsets that go together, each with the fewest micro-batches that make it fit.

What trains something else (LoRA, weights in bfloat16) is combined only where nothing that keeps the training fits.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import combinations

from .all_remedies import REMEDIES
from .config_file import OPTIONS
from .estimating import Case, product
from .evaluating import Evaluated, changes_of, evaluate, margin_of
from .interface import Estimate, Numerics, Setting

COMBINED = (
    "eight-bit-optimizer", "mixed-precision", "chunked-loss", "activation-checkpointing", "gradient-accumulation",
    "fsdp", "cpu-offload",
)  # fmt: skip
OTHER_TRAININGS = ("bf16-parameters", "lora", "qlora")  # one of them, with any of these:
BESIDE_THEM = ("chunked-loss", "activation-checkpointing", "gradient-accumulation", "fsdp")
NOT_TOGETHER = (frozenset({"eight-bit-optimizer", "cpu-offload"}),)  # two ways with the same state
SEARCHED = "gradient-accumulation"  # the one whose size is searched inside a combination: the fewest micro-batches


def combined(case: Case, singles: Sequence[Setting], known: Sequence[Evaluated], cut: bool) -> list[Evaluated]:
    """A combination is offered only if none of its parts fits alone at no higher cost."""
    choices: dict[str, list[Setting]] = {}
    for setting in singles:
        choices.setdefault(setting.name, []).append(setting)
    found: list[Evaluated] = []
    fitting = [e for e in known if e.fits]
    alone = {(s.name, str(s.options)): e.estimate for e in known for s in e.estimate.settings}
    for names in _subsets(choices):
        other = not set(names).isdisjoint(OTHER_TRAININGS)
        if other and any(each.estimate.numerics is not Numerics.CHANGED for each in fitting):
            continue
        for settings in _variants(names, choices):
            parts = [alone[key] for s in settings if (key := (s.name, str(s.options))) in alone]
            time = product([part.step_time_factor for part in parts]).expected
            if _dominated(set(names), time, fitting):
                continue
            result = _search(case, settings, choices.get(SEARCHED, []), cut)
            if result is None or _dominated(set(names), result.estimate.step_time_factor.expected, fitting):
                continue
            found.append(result)
            if result.fits:
                fitting.append(result)
    return found


def _subsets(choices: Mapping[str, list[Setting]]) -> Iterator[tuple[str, ...]]:
    """Names in the order of the registry, the small subsets first; those that train something else last."""
    able = [name for name in REMEDIES if name in choices and name in COMBINED]
    for size in range(2, len(able) + 1):
        for names in combinations(able, size):
            if not any(pair <= set(names) for pair in NOT_TOGETHER):
                yield names
    beside = [name for name in able if name in BESIDE_THEM]
    for size in range(1, len(beside) + 1):
        for other in [name for name in OTHER_TRAININGS if name in choices]:
            for names in combinations(beside, size):
                yield tuple(name for name in REMEDIES if name in (other, *names))


def _variants(names: Sequence[str], choices: Mapping[str, list[Setting]]) -> Iterator[tuple[Setting, ...]]:
    """One setting for each name: the first choice, except that offloading may be of state or of activations."""
    if "cpu-offload" in names:
        for setting in choices["cpu-offload"]:
            yield tuple(setting if name == "cpu-offload" else choices[name][0] for name in names)
        return
    yield tuple(choices[name][0] for name in names)


def _search(case: Case, settings: tuple[Setting, ...], counts: Sequence[Setting], cut: bool) -> Evaluated | None:
    """With accumulation among them: the fewest micro-batches that fit, found on peaks alone, then judged whole."""
    if SEARCHED not in {setting.name for setting in settings} or case.job.capacity_bytes is None:
        return evaluate(case, settings, cut)
    last: Evaluated | None = None
    for count in counts:
        tried = tuple(count if setting.name == SEARCHED else setting for setting in settings)
        changes = changes_of(case, tried)
        if changes is None:
            return None
        enough = changes[-1].expected.peak().bytes * (1 + margin_of(case, tried)) <= case.job.capacity_bytes
        if enough or count is counts[-1]:
            last = evaluate(case, tried, cut)
            if last is None or last.fits or count is counts[-1]:
                return last
    return last


def _dominated(names: Set[str], step_time: float, fitting: Sequence[Evaluated]) -> bool:
    """Something that fits asks for a part of these remedies only, and is no slower."""
    return any(
        {setting.name for setting in other.estimate.settings} < names
        and other.estimate.step_time_factor.expected <= step_time
        for other in fitting
    )


def can_be_applied(estimate: Estimate) -> bool:
    """`run --apply` puts all of its changes in force; others have to be made by hand."""
    return not estimate.by_hand and all(setting.name in OPTIONS for setting in estimate.settings)
