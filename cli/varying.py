"""`--vary TEMPLATE RANGE`: which argument or environment variable of a script is varied, and over which values."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import OomdocError

HOLE = "{}"
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
MOST_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class Varied:
    """`place`: where among the script's arguments it stands; None behind them all."""

    template: str
    values: Sequence[int]
    place: int | None = None

    @property
    def variable(self) -> str | None:
        """The environment variable, where the template is one (upper case, no dash)."""
        match = _VARIABLE.fullmatch(self.template)
        return match[1] if match else None

    def text(self, value: int) -> str:
        return self.template.replace(HOLE, str(value))

    def arguments(self, args: Sequence[str], value: int) -> tuple[str, ...]:
        """The script's arguments with this value."""
        if self.variable is not None:
            return tuple(args)
        words = [word.replace(HOLE, str(value)) for word in shlex.split(self.template)]
        at = len(args) if self.place is None else self.place
        return (*args[:at], *words, *args[at:])

    def environment(self, value: int) -> dict[str, str]:
        match = _VARIABLE.fullmatch(self.template)
        return {match[1]: match[2].replace(HOLE, str(value))} if match else {}


def parse(given: tuple[str, str] | None, args: Sequence[str]) -> tuple[Varied, tuple[str, ...]]:
    """What is varied, and the script's other arguments.

    `--vary` may also stand among those, where the argument is to be. Raises OomdocError.
    """
    if given is None:
        if "--vary" not in args:
            raise OomdocError("say what to vary: --vary '--batch-size={}' 1..512, before the script or behind it")
        at = list(args).index("--vary")
        if len(args) < at + 3:
            raise OomdocError("--vary takes two words: a template and a range, such as '--batch-size={}' 1..512")
        template, values = args[at + 1 : at + 3]
        return Varied(_checked(template), range_of(values), at), (*args[:at], *args[at + 3 :])
    template, values = given
    return Varied(_checked(template), range_of(values)), tuple(args)


def _checked(template: str) -> str:
    if HOLE not in template:
        raise OomdocError(f"--vary {template!r} has no {{}} for the value, as in '--batch-size={{}}' or 'BATCH={{}}'")
    try:
        shlex.split(template)
    except ValueError as error:
        raise OomdocError(f"--vary {template!r}: {error}") from error
    return template


def range_of(text: str) -> Sequence[int]:
    """`1..512`, `8..512:8` (every eighth), or `8,16,48`; rising."""
    match = _RANGE.fullmatch(text)
    if match:
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if low > high or step == 0 or (high - low) // step > MOST_VALUES:
            raise OomdocError(f"the range {text} has no value, or too many: LOW..HIGH, or LOW..HIGH:STEP")
        return range(low, high + 1, step)
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise OomdocError(f"{text!r} is no range: 1..512, 8..512:8 or 8,16,48")
    return sorted({int(word) for word in words})
