"""Attributes replaced for a while, and put back."""

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Replaced attributes of classes and modules, undone in reverse order."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
        """Set `owner.name` to `make(the current value)`, which is returned as it was."""
        current = getattr(owner, name)
        self._saved.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, make(current))
        return current

    def undo(self) -> None:
        while self._saved:
            owner, name, value = self._saved.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
