"""Training meets the largest batch that its DataLoader can yield, on every second draw.

A run of three steps sees three batches; where samples differ in length, the epoch's largest is rarely among them. The
size of each sample is read from the data set itself, on the host. A shuffling sampler may put the largest samples into
one batch; for any other the batches of an epoch are taken as it makes them. Random states are put back afterwards, so
the other draws are those of an untouched run.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

SECONDS = 5.0  # of reading samples, for each loader
_LENGTHS = (str, bytes, bytearray, range)


class LargestBatch:
    """What is known of it; `facts()` is what the recording keeps."""

    def __init__(self) -> None:
        self._loaders: dict[int, dict[str, object]] = {}
        self._chosen: dict[int, list[int] | None] = {}  # samples of the largest batch, once per loader
        self._keep: list[object] = []  # the ids stay theirs

    def facts(self) -> dict[str, object]:
        """Of the loader over the most samples: samples read, of how many, and whether their sizes differ."""
        found = list(self._loaders.values())
        if not found:
            return {"loader": False}
        sizes = [int(str(each.get("samples", 0))) for each in found]
        return {"loader": True, **found[sizes.index(max(sizes))]}

    def iterate(self, original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            return _Alternating(original(loader), lambda: self._of(loader))

        return iterate

    def _of(self, loader: DataLoader[Any]) -> Any:
        """The largest batch, None where it cannot be told or is like any other."""
        with _unchanged_randomness():
            try:
                if id(loader) not in self._chosen:
                    self._keep.append(loader)
                    self._chosen[id(loader)] = self._choose(loader)
                indices = self._chosen[id(loader)]
                return None if indices is None else _fetch(loader, indices)
            except Exception as error:  # the data set is the user's: what it raises is not ours to judge
                self._chosen[id(loader)] = None
                reason = f"reading the data set ahead failed: {type(error).__name__}: {error}"
                self._loaders[id(loader)]["reason"] = reason
                return None

    def _choose(self, loader: DataLoader[Any]) -> list[int] | None:
        """Indices of the samples of its largest batch."""
        known = self._loaders[id(loader)] = {}
        sampler = loader.batch_sampler
        samples = _length(loader.dataset)
        if sampler is None or samples is None:
            known["reason"] = "the data set is iterable: its samples come in its own order"
            return None
        sizes = _sizes(loader.dataset, samples)
        known.update({"samples": samples, "read": len(sizes), "uniform": len(set(sizes.values())) < 2})
        return None if known["uniform"] else _largest(sampler, sizes)


class _Alternating:
    """An iterator of a DataLoader: every second batch that training draws gives way to the largest."""

    def __init__(self, inner: Iterator[Any], largest: Callable[[], Any]) -> None:
        self._inner = inner
        self._make = largest
        self._drawn = 0

    def __iter__(self) -> "_Alternating":
        return self

    def __next__(self) -> Any:
        batch = next(self._inner)
        if not torch.is_grad_enabled():
            return batch
        self._drawn += 1
        if self._drawn % 2:
            return batch
        largest = self._make()
        return batch if largest is None else largest

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def installed() -> Iterator[LargestBatch]:
    largest = LargestBatch()
    original = DataLoader.__iter__
    DataLoader.__iter__ = largest.iterate(original)  # type: ignore[method-assign, assignment]
    try:
        yield largest
    finally:
        DataLoader.__iter__ = original  # type: ignore[method-assign]


def _largest(sampler: Any, sizes: Mapping[int, int]) -> list[int]:
    """Indices of the batch that padding makes largest: its samples times the size of its largest one."""
    if isinstance(sampler, BatchSampler) and not isinstance(sampler.sampler, SequentialSampler):
        order = sorted(sizes, key=lambda index: sizes[index], reverse=True)
        count = int(sampler.batch_size)
        return (order * (count // max(1, len(order)) + 1))[:count]
    batches = (list(each) for each in sampler)
    return max(batches, key=lambda each: len(each) * max((sizes.get(index, 0) for index in each), default=0))


def _fetch(loader: DataLoader[Any], indices: Sequence[int]) -> Any:
    dataset: Any = loader.dataset
    many = getattr(dataset, "__getitems__", None)
    samples = many(list(indices)) if callable(many) else [dataset[index] for index in indices]
    return loader.collate_fn(samples)


def _sizes(dataset: Any, samples: int) -> dict[int, int]:
    """Bytes of each sample; of an even spread of them where reading all would take too long."""
    sizes: dict[int, int] = {}
    end = time.monotonic() + SECONDS
    for stride in (1024, 32, 1):
        for index in range(0, samples, stride):
            if index not in sizes:
                sizes[index] = _bytes(dataset[index])
                if time.monotonic() > end:
                    return sizes
    return sizes


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, _LENGTHS):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value)) if value and not isinstance(value[0], (int, float)) else 8 * len(value)
    return 8


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset) if hasattr(dataset, "__getitem__") else None
    except (TypeError, NotImplementedError):
        return None


@contextmanager
def _unchanged_randomness() -> Iterator[None]:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
