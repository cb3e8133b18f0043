"""When to dump besides at the end: `steps:3,10`, `requests:100`, `every:300s`, with blanks between."""

import re
import time
from dataclasses import dataclass

from ..errors import OomdocError

_EVERY = re.compile(r"^(\d+(?:\.\d+)?)(s|m|h)?$")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggers:
    steps: frozenset[int] = frozenset()
    requests: frozenset[int] = frozenset()
    every_seconds: float | None = None


def parse(text: str | None) -> Triggers:
    """Raises OomdocError for anything else than the three forms."""
    steps: set[int] = set()
    requests: set[int] = set()
    every: float | None = None
    for part in (text or "").split():
        what, _, value = part.partition(":")
        found = _EVERY.match(value) if what == "every" else None
        numbers = [int(each) for each in value.split(",") if each.isdigit()]
        if found is not None:
            every = float(found[1]) * _SECONDS[found[2]]
        elif what in ("steps", "requests") and numbers and len(numbers) == len(value.split(",")):
            (steps if what == "steps" else requests).update(numbers)
        else:
            raise OomdocError(f"--dump {part} is not steps:3,10 nor requests:100 nor every:300s")
    return Triggers(steps=frozenset(steps), requests=frozenset(requests), every_seconds=every)


class Due:
    """Which of them are due; asked whenever the hooks see a change."""

    def __init__(self, triggers: Triggers) -> None:
        self._triggers = triggers
        self._next = None if triggers.every_seconds is None else time.monotonic() + triggers.every_seconds
        self._last_request = 0

    @property
    def by_request(self) -> bool:
        return bool(self._triggers.requests)

    def step(self, number: int) -> bool:
        return number in self._triggers.steps

    def request(self, number: int) -> bool:
        """Asked with the number of requests so far; once for each."""
        if number == self._last_request:
            return False
        self._last_request = number
        return number in self._triggers.requests

    def now(self) -> bool:
        if self._next is None or time.monotonic() < self._next:
            return False
        assert self._triggers.every_seconds is not None
        self._next = time.monotonic() + self._triggers.every_seconds
        return True
