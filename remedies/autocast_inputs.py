"""What a product reads under autocast: a float32 tensor is cast for each product that reads it, and the cast is saved.

Which tensor a product read is told by lifetimes: made before the product, let go not before the product's backward,
and of the size that the product's weight and result leave for it.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from ..snapshots.model import Stacks
from .autocast_kinds import Kind
from .autocast_rows import TORCH
from .autocast_types import Forward
from .batch_scaling import ends_of_operations
from .job_facts import JobFacts
from .passes import ENGINE_EVENTS, Iteration, activation_rows
from .whatif_timeline import BACKWARD, FORWARD, Mask, Timeline

ITEM = 4  # bytes of a float32
FLOAT32 = (Kind.KEEPS, Kind.NORM, Kind.OPEN_KEEP)
LEAST_AGREEING = 0.5  # of the products that agree on the most common number of vectors
MOST_SMALLER = 16  # times that what a product reads is smaller than its result; statistics and masks are more
COPIED_WITHIN = 4.0  # events from the copy to the product: its weight's cast may lie between
STILL_READ = 12  # activations that are made while what a product has cast is still held by the code around it


@dataclass(frozen=True, slots=True)
class Read:
    """`product` (a row: its result) read `source` (a row), which is saved from `start` on until `end`."""

    product: int
    source: int
    start: float
    end: float


def reads(
    timeline: Timeline, kinds: NDArray[np.int8], iteration: Iteration, facts: JobFacts, stacks: Stacks
) -> list[Read]:
    """The products of one forward and what each read: told by lifetimes and sizes, else what was saved just before.

    Not those of frozen weights, which save no input: it is let go with its cast.
    """
    weight_bytes = facts.parameter_bytes_used_by_module
    inside = (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
    products = np.flatnonzero(activation_rows(timeline) & inside & (kinds == Kind.PRODUCT))
    products = _results(timeline, products[np.argsort(timeline.birth[products], kind="stable")])
    back = timeline.is_phase(BACKWARD) & (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
    if not facts.inferred and facts.trainable_bytes < facts.parameter_bytes:
        learning = timeline.module[back & timeline.is_category(Category.GRADIENT)]
        products = products[np.isin(timeline.module[products], learning)]
    tensors = (activation_rows(timeline) & inside) | timeline.is_category(Category.INPUT)
    found: list[tuple[int, int, NDArray[np.intp], float]] = []
    for row in products.tolist():
        weight = weight_bytes.get(timeline.modules[timeline.module[row]], 0)
        own = timeline.birth[back & (timeline.module == timeline.module[row])]
        last, end = (
            (float(own.max()), float(own.max()) + 0.9) if len(own) else (iteration.backward_start, iteration.end)
        )
        rows = np.flatnonzero(tensors & (timeline.birth < timeline.birth[row]) & (timeline.death > last))
        found.append((row, weight, rows[np.argsort(-timeline.birth[rows], kind="stable")], end))
    counts = _tokens(timeline, [(row, weight, rows) for row, weight, rows, _ in found])
    result: list[Read] = []
    in_one_line: set[int] = set()  # sources that a product's line made in passing: no other line reads them
    for row, weight, rows, end in found:
        passing = partial(_passing, timeline, stacks, row)
        able = [r for r in rows.tolist() if r not in in_one_line or passing(r)]
        source = next((r for r in able if counts & _counts(timeline, row, r, weight)), None)
        if source is None:  # a convolution, or one whose weight is not known by itself
            near = [r for r in able[:STILL_READ] if MOST_SMALLER * timeline.size[r] >= timeline.size[row]]
            normed = [r for r in near if kinds[r] == Kind.NORM and not weight]
            source = next(iter([*normed, *near]), None)
        if source is not None:
            result.append(Read(row, source, float(timeline.birth[row]) - 0.3, end))
            if passing(source):
                in_one_line.add(source)
    return result


def _results(timeline: Timeline, products: NDArray[np.intp]) -> NDArray[np.intp]:
    """Without what a product first copied, to have its input in one piece: its module's next row follows at once."""
    module, birth = timeline.module[products], timeline.birth[products]
    copied = (module[1:] == module[:-1]) & (module[1:] >= 0) & (birth[1:] - birth[:-1] <= COPIED_WITHIN)
    last: NDArray[np.bool_] = np.append(~copied, True)[: len(products)]
    found: NDArray[np.intp] = products[last]
    return found


def _tokens(timeline: Timeline, found: list[tuple[int, int, NDArray[np.intp]]]) -> set[int]:
    """How many vectors (tokens, samples, channels) the products multiply: the numbers that many of them agree on."""
    votes: Counter[int] = Counter()
    for row, weight, rows in found:
        votes.update({n for r in rows.tolist() for n in _counts(timeline, row, r, weight)})
    most = max(votes.values(), default=0)
    return {n for n, agreeing in votes.items() if agreeing >= LEAST_AGREEING * most}


def _counts(timeline: Timeline, product: int, source: int, weight: int) -> set[int]:
    """The numbers of vectors for which a matrix of `weight` bytes (with or without bias) makes one row of the other."""
    made, read = int(timeline.size[product]), int(timeline.size[source])
    if not weight:
        return set()
    plain = isqrt(made * read // (ITEM * weight))
    biased = (made + isqrt(made * made + weight * made * read // ITEM * ITEM)) // (2 * weight)
    return {n for n in (plain, biased, biased + 1) if n and _fits(n, made, read, weight)}


def _fits(count: int, made: int, read: int, weight: int) -> bool:
    if made % (ITEM * count) or read % (ITEM * count):
        return False
    out, into = made // (ITEM * count), read // (ITEM * count)
    return weight in (ITEM * out * into, ITEM * out * (into + 1))


def cast_for_products(
    new: Timeline, timeline: Timeline, kinds: NDArray[np.int8], found: list[Read], iteration: Iteration, stacks: Stacks
) -> Timeline:
    """Half copies for each product; float32 tensors that nothing but products saved are let go after them.

    At once where the product's line computed them in passing, else when the code around has let go of its variable.
    """
    float32 = np.isin(kinds, FLOAT32) | timeline.is_category(Category.INPUT)
    casts = [each for each in found if float32[each.source]]
    births = np.sort(timeline.birth[activation_rows(timeline)])
    death = new.death.copy()
    for source in {each.source for each in casts}:
        mine = [each for each in casts if each.source == source]
        last = max(each.end for each in mine)
        if timeline.death[source] > last + 2 * ENGINE_EVENTS:
            continue  # something else saved it as well
        passing = _passing(timeline, stacks, mine[-1].product, source)
        after = np.searchsorted(births, timeline.birth[mine[-1].product], side="right") + (0 if passing else STILL_READ)
        end = float(births[after]) - 0.25 if after < len(births) else iteration.backward_start
        death[source] = min(max(end, float(timeline.birth[source]) + 1), iteration.backward_start - 0.5)
    spans = [((int(timeline.size[each.source]) + 1) // 2, each.start, each.end) for each in casts]
    return new.with_death(death).added(spans, category=Category.ACTIVATION, phase=FORWARD, step=iteration.step)


def read_by_attention(timeline: Timeline, kinds: NDArray[np.int8], iteration: Iteration) -> Mask:
    """Queries, keys and values that a fused attention saved: cast, whatever type they were made in.

    Told by what the attention of the same module lets go together with its own result.
    """
    inside = (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
    mine = activation_rows(timeline) & inside
    found = np.zeros(len(timeline), np.bool_)
    for module in np.unique(timeline.module[mine & (kinds == Kind.ATTENTION)]).tolist():
        rows = np.flatnonzero(mine & (timeline.module == module))
        results = rows[(kinds[rows] == Kind.ATTENTION) & (timeline.death[rows] > iteration.backward_start)]
        if not len(results):
            continue
        gone, made = timeline.death[results].max(), timeline.birth[results].min()
        found[rows[(timeline.birth[rows] < made) & (np.abs(timeline.death[rows] - gone) <= 2 * ENGINE_EVENTS)]] = True
    return found


def _passing(timeline: Timeline, stacks: Stacks, product: int, source: int) -> bool:
    return in_passing(stacks, int(timeline.stack[source]), int(timeline.stack[product]))


def in_passing(stacks: Stacks, source: int, product: int) -> bool:
    """Whether one line of the code that has both on its way made the source and the product: `conv(silu(x))`."""
    theirs = {(f.filename, f.name): f.line for f in reversed(tuple(stacks.of(product))) if not TORCH.search(f.filename)}
    for frame in stacks.of(source):
        line = theirs.get((frame.filename, frame.name))
        if line is not None:
            return line == frame.line
    return False


def cast_for_norms(
    new: Timeline, timeline: Timeline, kinds: NDArray[np.int8], found: list[Read], iteration: Iteration
) -> Timeline:
    """Norms compute in float32: what they read in half is cast, and they save the cast in its place."""
    products = {each.source for each in found}
    back = timeline.is_phase(BACKWARD) & (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
    births = np.sort(timeline.birth[activation_rows(timeline)])
    death, spans = new.death.copy(), []
    for row, operands in Forward(timeline, iteration).alike().items():
        source = operands[0] if operands else -1
        if kinds[row] != Kind.NORM or source < 0 or kinds[source] in (*FLOAT32, Kind.OPEN_HALF):
            continue
        own = timeline.birth[back & (timeline.module == timeline.module[row])]
        end = float(own.max()) + 0.9 if len(own) else iteration.end
        spans.append((int(timeline.size[source]), float(timeline.birth[row]) - 0.2, end))
        if source not in products and timeline.death[source] <= end + 2 * ENGINE_EVENTS:
            after = np.searchsorted(births, timeline.birth[row], side="right") + STILL_READ
            read = float(births[after]) - 0.25 if after < len(births) else iteration.backward_start
            read = min(max(read, float(timeline.birth[source]) + 1), iteration.backward_start - 0.5)
            death[source] = min(death[source], read)
    return new.with_death(death).added(spans, category=Category.ACTIVATION, phase=FORWARD, step=iteration.step)


def gradients_cast(new: Timeline, timeline: Timeline, kinds: NDArray[np.int8], iteration: Iteration) -> Timeline:
    """Gradients of cast weights are made in half, and cast to float32 when their operation is done."""
    made = timeline.is_category(Category.GRADIENT) & (kinds == Kind.PRODUCT)
    made &= (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
    rows = np.flatnonzero(made)
    done = ends_of_operations(timeline, rows)
    birth = new.birth.copy()
    birth[rows] = np.minimum(done, timeline.death[rows])
    halves = timeline.copies(
        rows,
        birth=timeline.birth[rows],
        death=done + 0.1,
        size=(timeline.size[rows] + 1) // 2,
        phase=BACKWARD,
        category=Category.TEMPORARY,
    )
    return new.copies(np.arange(len(new)), birth=birth, death=new.death).joined(halves)
