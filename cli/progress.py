"""What a run is doing, on one line of a terminal's stderr; nothing where stderr is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

_INTERVAL_SECONDS = 0.1


@contextmanager
def progress(what: str, stream: TextIO | None = None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Gives the function that a run calls with each of its progress records; `stream` is stderr if not said otherwise.

    The line ends with a carriage return: what the script prints next takes its place.
    """
    from .output import Talk

    out = stream or sys.stderr
    if Talk.quiet or not out.isatty():
        yield lambda record: None
        return
    line = _Line(what, out)
    line.draw({})
    try:
        yield line.update
    finally:
        line.clear()


class _Line:
    def __init__(self, what: str, stream: TextIO) -> None:
        self.what = what
        self.stream = stream
        self.started = time.monotonic()
        self.drawn = 0.0

    def update(self, record: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self.drawn >= _INTERVAL_SECONDS:
            self.drawn = now
            self.draw(record)

    def draw(self, record: Mapping[str, Any]) -> None:
        from .output import width

        text = describe(self.what, record, time.monotonic() - self.started)
        self.stream.write(f"\r\x1b[2K{text[: width(self.stream) - 1]}\r")
        self.stream.flush()

    def clear(self) -> None:
        self.stream.write("\r\x1b[2K")
        self.stream.flush()


def describe(what: str, record: Mapping[str, Any], seconds: float) -> str:
    """`recording · step 2, backward · 12.31 GiB allocated, peak 14.00 GiB · 3 s`."""
    from ..reports.text import moment, size

    parts = [what, moment(record.get("step"), record.get("phase"))]
    if "allocated_bytes" in record:
        parts.append(f"{size(record['allocated_bytes'])} allocated, peak {size(record['peak_bytes'])}")
    parts.append(f"{seconds:.0f} s")
    return " · ".join(part for part in parts if part)
