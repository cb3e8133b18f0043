"""Splitting what a DataLoader yields: a rank's share of the batch, and micro-batches of it."""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .application import CannotApplyError

_PLAIN = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a batch: `samples` of the `of` samples that the DataLoader yielded."""

    value: Any
    samples: int
    of: int


def batch_size(batch: Any) -> int:
    """The number of samples: the leading dimension on which all tensors of the batch agree.

    Raises CannotApplyError where they do not: such a batch cannot be cut.
    """
    sizes = set(_leading(batch))
    if len(sizes) == 1:
        return int(sizes.pop())
    parts = batch if isinstance(batch, (list, tuple)) else ()
    lengths = {len(part) for part in parts if isinstance(part, (list, tuple))}
    if len(lengths) == 1 and all(isinstance(part, (list, tuple)) for part in parts):
        return int(lengths.pop())
    what = f"tensors of {len(sizes)} different leading sizes {sorted(sizes)}" if sizes else "no tensor"
    raise CannotApplyError(
        f"the DataLoader yields {what}, so its batch cannot be cut into equal parts. "
        "Let the collate function put the samples first in every tensor, or reduce the batch size by hand."
    )


def _leading(batch: Any) -> Iterator[int]:
    if isinstance(batch, torch.Tensor):
        if batch.ndim:
            yield batch.shape[0]
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leading(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _leading(value)
    elif not isinstance(batch, _PLAIN):
        raise CannotApplyError(
            f"the DataLoader yields a {type(batch).__module__}.{type(batch).__qualname__}, which oomdoc cannot cut. "
            "Yield tensors, lists, tuples or dicts, or reduce the batch size by hand."
        )


def take(batch: Any, size: int, start: int, stop: int) -> Any:
    """Samples [start, stop) of a batch of `size`; tensors become views, structure and types are kept."""
    if isinstance(batch, torch.Tensor):
        return batch[start:stop] if batch.ndim and batch.shape[0] == size else batch
    if isinstance(batch, Mapping):
        part = copy.copy(batch)
        for key, value in batch.items():
            part[key] = take(value, size, start, stop)  # type: ignore[index]
        return part
    if isinstance(batch, (list, tuple)):
        if len(batch) == size and not _all_lead_with(batch, size):
            cut = batch[start:stop]
            return cut if type(cut) is type(batch) else type(batch)(cut)
        parts = [take(value, size, start, stop) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _all_lead_with(values: Any, size: int) -> bool:
    """Whether every element is itself a batch of `size` samples: then the list is a structure, not the samples."""
    return all(isinstance(v, torch.Tensor) and v.ndim > 0 and v.shape[0] == size for v in values)


def cut(batch: Any, *, rank: int, ranks: int, micro_batches: int) -> list[Piece]:
    """This rank's share, in at most `micro_batches` pieces of nearly equal size, in order."""
    total = batch_size(batch)
    low, high = total * rank // ranks, total * (rank + 1) // ranks
    if high == low:
        raise CannotApplyError(
            f"a batch of {total} samples cannot be shared by {ranks} ranks: rank {rank} would get none. "
            "Raise the batch size, set drop_last=True, or use fewer ranks."
        )
    count = min(micro_batches, high - low)
    edges = [low + (high - low) * i // count for i in range(count + 1)]
    return [Piece(take(batch, total, a, b), b - a, total) for a, b in itertools.pairwise(edges)]


class SplitIterator:
    """An iterator over a DataLoader that yields the pieces of each batch."""

    def __init__(
        self, inner: Iterator[Any], split: Callable[[Any], list[Piece]], owner: "SplitState", ranks: int = 1
    ) -> None:
        self.ranks = ranks  # that share each batch
        self._inner = inner
        self._split = split
        self._owner = owner
        self._queue: deque[Piece] = deque()
        self.piece: Piece | None = None
        self.remaining = 0
        self.first = True
        self.cut = False  # whether the present batch was cut into more than one piece

    def __iter__(self) -> "SplitIterator":
        return self

    def __next__(self) -> Any:
        self._owner.about_to_yield(self)
        self.first = not self._queue
        if not self._queue:
            try:
                batch = next(self._inner)
            except StopIteration:
                self._owner.finished(self)
                raise
            pieces = self._split(batch)
            self.cut = len(pieces) > 1
            self._queue.extend(pieces)
        self.piece = self._queue.popleft()
        self.remaining = len(self._queue)
        self._owner.yielded(self)
        return self.piece.value

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SplitState:
    """Which DataLoader the script is drawing from, and where in its batch it is."""

    def __init__(self) -> None:
        self._active: list[SplitIterator] = []
        self.observers: list[Callable[[SplitIterator], None]] = []  # called before a new batch is fetched

    @property
    def current(self) -> SplitIterator | None:
        return self._active[-1] if self._active else None

    @property
    def last_piece(self) -> bool:
        """Whether the optimizer may act: the last piece of a batch, or no batch at all."""
        return self.current is None or self.current.remaining == 0

    def about_to_yield(self, iterator: SplitIterator) -> None:
        for observer in self.observers:
            observer(iterator)

    def yielded(self, iterator: SplitIterator) -> None:
        if iterator in self._active:
            # an inner loop (evaluation) that was left early is over once the outer one goes on
            del self._active[self._active.index(iterator) + 1 :]
        else:
            self._active.append(iterator)

    def finished(self, iterator: SplitIterator) -> None:
        if iterator in self._active:
            del self._active[self._active.index(iterator) :]
