"""Keep the keys and values of past tokens in host memory, those of two layers on the card.

Applies when: a key-value cache holds a large share of the peak of a job that generates, and the host has the room.
Saves: all but what the layer that computes and the next one, which is fetched meanwhile, have.
Costs: the whole cache crosses PCIe for each token, which takes longer than computing it from a cache of some GiB on.
Numerics: identical.
Conflicts: host memory; batch jobs bear it, what answers a person does not.
Frameworks: transformers `generate(cache_implementation="offloaded")`; vLLM `--swap-space` moves whole requests.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.text import size
from .costs.transfer import fetched_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .key_value_cache import cache_rows, layers_of, peak_of, refused, uses_end

NAME = "offloaded-kv-cache"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.SETTING


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    why_not = refused(case)
    return NotApplicable(NAME, why_not) if why_not else (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline, rows = case.timeline, cache_rows(case)
    if not len(rows):
        return NotApplicable(NAME, "no key-value cache is in the trace")
    death = timeline.death.copy()
    death[rows] = uses_end(timeline, rows)
    fetched = timeline.copies(rows, birth=_fetch_begins(case, rows), death=timeline.birth[rows] + 0.1)
    moved = timeline.with_death(death)
    held = peak_of(timeline, rows)
    return Change(
        setting=Setting(name=NAME),
        expected=moved.joined(fetched),
        low=moved,
        high=None,
        step_time_factor=fetched_factor(case, held),
        numerics=NUMERICS,
        why=f"{size(held)} of keys and values wait in host memory; two layers' are here at a time",
        doubt="how far the next layer's have come when a layer ends",
        time_doubt="from transfers hidden behind a long prompt to one for each token",
    )


def _fetch_begins(case: Case, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """When the layer before begins: a layer's own are fetched during it. A first forward has nothing to fetch."""
    birth, module = case.timeline.birth[rows], case.timeline.module[rows]
    starts, mine = layers_of(case.timeline, rows)
    first = np.zeros(len(starts), np.bool_)
    first[np.unique(module[starts], return_index=True)[1]] = True
    found: NDArray[np.float64] = np.where(first[mine], birth, birth[starts[np.maximum(mine - 1, 0)]])
    return found
