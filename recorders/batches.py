"""What the script draws from its DataLoaders: how large their batches are, and the shapes in them.

On a real GPU nobody sees what is copied to it. And the loader of `for batch in DataLoader(...)` is gone with its loop,
before the end of the recording.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .hooks import tensors_in

MOST_SHAPES = 1_000  # of batches of text with a length each


class Batches:
    """`shapes`: (shape, dtype) -> how many; `current`: tensors of the latest batch; `loader`: who feeds training."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[tuple[int, ...], str], int] = {}
        self.current: list[dict[str, object]] = []
        self.loader: dict[str, int] | None = None  # of those drawn from, the one over the most samples

    def saw(self, batch: Any) -> None:
        tensors = list(tensors_in(batch))
        self.current = [{"shape": list(each.shape), "dtype": _dtype(each)} for each in tensors]
        for each in tensors:
            key = (tuple(each.shape), _dtype(each))
            if key in self.shapes or len(self.shapes) < MOST_SHAPES:
                self.shapes[key] = self.shapes.get(key, 0) + 1

    def drew(self, iterator: Any) -> None:
        size = getattr(iterator._index_sampler, "batch_size", None)
        samples = length(iterator._dataset)
        if isinstance(size, int) and (self.loader is None or samples > self.loader["samples"]):
            self.loader = {"batch_size": size, "samples": samples}

    @contextmanager
    def install(self) -> Iterator[None]:
        iterators: Any = _BaseDataLoaderIter
        own = iterators.__next__

        def following(iterator: Any) -> Any:
            batch = own(iterator)
            self.drew(iterator)
            self.saw(batch)
            return batch

        iterators.__next__ = following
        try:
            yield
        finally:
            iterators.__next__ = own


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def length(dataset: Any) -> int:
    """Samples of a data set; 0 for an iterable one, or one of unknown length."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0
