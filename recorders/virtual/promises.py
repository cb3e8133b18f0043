"""Values of big tensors, computed only when somebody asks: hardly any are ever counted, read or indexed with.

A router's choices decide sizes, and so do a few masks that follow from them. A quantised weight, whose every element
is such a choice too, decides none. So of a big result is kept what it follows from. A promise never changes: what
is written in place gets a promise of its own, or a copy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

DEPTH = 64  # of promises that follow from promises: beyond it the values are computed, and forget what they came from


class Unknown(Exception):  # noqa: N818  # a signal, not an error
    """An operand has no values, or the CPU cannot do the operation."""


class Promise:
    """The values of a whole storage; `make` is called at most once, and raises Unknown where there are none."""

    __slots__ = ("_make", "_storage", "depth", "nbytes")

    def __init__(self, nbytes: int, make: Callable[[], torch.UntypedStorage], depth: int = 0) -> None:
        self.nbytes = nbytes
        self.depth = depth
        self._make: Callable[[], torch.UntypedStorage] | None = make
        self._storage: torch.UntypedStorage | None = None
        if depth > DEPTH:
            self.storage()

    @property
    def made(self) -> bool:
        return self._make is None

    def storage(self) -> torch.UntypedStorage | None:
        """The values, not to be written to; None where nobody can know them."""
        make, self._make = self._make, None
        if make is not None:
            self.depth = 0
            try:
                self._storage = make()
            except (Unknown, RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
                self._storage = None
        return self._storage


class Part:
    """A tensor's share of a promised storage."""

    __slots__ = ("dtype", "offset", "promise", "shape", "stride")

    def __init__(self, promise: Promise, like: torch.Tensor) -> None:
        self.promise = promise
        self.dtype, self.offset, self.shape, self.stride = like.dtype, like.storage_offset(), like.shape, like.stride()

    def values(self) -> torch.Tensor:
        storage = self.promise.storage()
        if storage is None:
            raise Unknown
        return self.of(storage)

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        empty: Any = torch.empty(0, dtype=self.dtype)
        laid_out: torch.Tensor = empty.set_(storage, self.offset, self.shape, self.stride)
        return laid_out


def kept(storage: torch.UntypedStorage) -> Promise:
    """Values that are known already."""
    promise = Promise(storage.nbytes(), lambda: storage)
    promise.storage()
    return promise


def follows(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: torch.Tensor, nbytes: int, written: Part | None
) -> Promise:
    """What `result`, of a storage of `nbytes`, holds by `func` of parts of promises; `written`: the one written to."""
    depth = 1 + max((each.promise.depth for each in _parts((*args, *kwargs.values()))), default=0)
    laid_out = Part(kept(torch.UntypedStorage(0)), result)  # type: ignore[no-untyped-call]

    def make() -> torch.UntypedStorage:
        if written is not None:
            before = written.promise.storage()
            if before is None:
                raise Unknown
            storage: torch.UntypedStorage = before.clone()  # type: ignore[no-untyped-call]
            func(*(written.of(storage) if each is written else made(each) for each in args), **_all(kwargs))
            return storage
        storage = torch.UntypedStorage(nbytes)  # type: ignore[no-untyped-call]
        laid_out.of(storage).copy_(func(*map(made, args), **_all(kwargs)))
        return storage

    return Promise(nbytes, make, depth)


def _all(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: made(value) for name, value in kwargs.items()}


def made(value: Any) -> Any:
    """`value` with the values of each part in it; Unknown where one has none."""
    if isinstance(value, Part):
        return value.values()
    return [made(each) for each in value] if isinstance(value, (list, tuple)) else value


def _parts(values: Sequence[Any]) -> list[Part]:
    found = []
    for value in values:
        if isinstance(value, Part):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _parts(value)
    return found
