"""Shapes of the batches that a DataLoader gives the script: on a real GPU nobody sees what is copied to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .hooks import tensors_in

MOST_SHAPES = 1_000  # of batches of text with a length each


class Batches:
    """`shapes`: (shape, dtype) -> how many; `current`: the tensors of the latest batch."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[tuple[int, ...], str], int] = {}
        self.current: list[dict[str, object]] = []

    def saw(self, batch: Any) -> None:
        tensors = list(tensors_in(batch))
        self.current = [{"shape": list(each.shape), "dtype": _dtype(each)} for each in tensors]
        for each in tensors:
            key = (tuple(each.shape), _dtype(each))
            if key in self.shapes or len(self.shapes) < MOST_SHAPES:
                self.shapes[key] = self.shapes.get(key, 0) + 1

    @contextmanager
    def install(self) -> Iterator[None]:
        iterators: Any = _BaseDataLoaderIter
        own = iterators.__next__

        def following(iterator: Any) -> Any:
            batch = own(iterator)
            self.saw(batch)
            return batch

        iterators.__next__ = following
        try:
            yield
        finally:
            iterators.__next__ = own


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
