"""Attributes replaced for the time of a session, and put back exactly as they were."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_ABSENT = object()
_OWN = __name__.rpartition(".")[0] + "."


class Patches:
    """Sets attributes and remembers what stood there; `restore` undoes all of it, last first.

    An attribute that was only inherited (a method of a base class seen through a subclass) is deleted again, so
    that afterwards `vars(owner)` is what it was.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, object]] = []
        self._swaps: dict[int, tuple[object, object]] = {}

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set `owner.name`, on a module, a class or an object."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def set_all(self, owner: Any, values: dict[str, object]) -> None:
        for name, value in values.items():
            self.set(owner, name, value)

    def remove(self, owner: Any, name: str) -> None:
        """Take `owner.name` away if it is there."""
        if name in vars(owner):
            self._undo.append((owner, name, vars(owner)[name]))
            delattr(owner, name)

    def item(self, mapping: dict[Any, Any], key: Any, value: object) -> None:
        """Set `mapping[key]`."""
        self._undo.append((mapping, _Item(key), mapping.get(key, _ABSENT)))
        mapping[key] = value

    def swap_everywhere(self, swaps: list[tuple[object, object]], roots: tuple[str, ...] = ("torch",)) -> None:
        """Replace each object by its partner under every name that a loaded module of `roots` holds for it.

        Python copies a reference on `from x import y`; replacing `x.y` alone would leave those copies. At
        `restore` every loaded module is searched, because modules imported meanwhile copied the replacement.
        """
        new_of = {id(old): (old, new) for old, new in swaps}
        self._swaps.update({id(new): (new, old) for old, new in swaps})
        prefixes = tuple(f"{root}." for root in roots)
        for name, module in list(sys.modules.items()):
            if name in roots or name.startswith(prefixes):
                for attribute, _, new in _held(module, new_of):
                    self.set(module, attribute, new)

    def restore(self) -> None:
        """Put everything back; safe to call twice."""
        while self._undo:
            owner, name, old = self._undo.pop()
            if isinstance(name, _Item):
                if old is _ABSENT:
                    owner.pop(name.key, None)
                else:
                    owner[name.key] = old
            elif old is _ABSENT:
                if name in vars(owner):
                    delattr(owner, name)
            else:
                setattr(owner, name, old)
        swaps, self._swaps = self._swaps, {}
        if swaps:
            for name, module in list(sys.modules.items()):
                if name.startswith(_OWN):
                    continue  # where the replacements are defined
                for attribute, _, old in _held(module, swaps):
                    setattr(module, attribute, old)


class _Item(str):
    """Marks an undo entry of `Patches.item`; carries the key."""

    __slots__ = ("key",)
    key: Any

    def __new__(cls, key: Any) -> "_Item":
        entry = super().__new__(cls, repr(key))
        entry.key = key
        return entry


def _held(module: object, table: dict[int, tuple[object, object]]) -> list[tuple[str, object, object]]:
    """(attribute, what it holds, its replacement) for each object of `table` among the attributes of `module`."""
    if not isinstance(module, ModuleType):
        return []
    found = []
    for attribute, value in list(vars(module).items()):
        entry = table.get(id(value))
        if entry is not None and entry[0] is value:
            found.append((attribute, value, entry[1]))
    return found


@contextmanager
def patches() -> Iterator[Patches]:
    """A `Patches` that is restored when the block ends, however it ends."""
    held = Patches()
    try:
        yield held
    finally:
        held.restore()
