"""What a rank tells its launcher while the script runs, at most five times a second.

    {"rank": 0, "pid": 7, "step": 2, "phase": "backward", "allocated_bytes": 1, "peak_bytes": 2, "events": 3, ...}

Told when the hooks see a change, so that no thread is needed (a script may fork).
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .channel import Speaker
from .recorder import Recorder

INTERVAL_SECONDS = 0.2
PARTS_SECONDS = 2.0  # between two looks at what the models hold

Handler = Any


class Progress:
    def __init__(self, recorder: Recorder, speaker: Speaker, rank: int = 0) -> None:
        self._recorder = recorder
        self._speaker = speaker
        self._rank = rank
        self._next = 0.0
        self._parts_next = 0.0
        self._parts: Mapping[str, int] = {}

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """While the block runs, SIGINT is told of; at its end, once more how far the script came."""
        if not self._speaker.open:
            yield
            return
        self.write()
        with announcing_interrupts(lambda: self._speaker.say({"interrupted": True})):
            yield
        self.write()

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL_SECONDS
            self.write()

    def tell(self, record: Mapping[str, Any]) -> None:
        """Something besides the progress: a warning."""
        self._speaker.say({"rank": self._rank, "pid": os.getpid(), **record})

    def write(self) -> None:
        if not self._speaker.open:
            return
        allocated, peak, events = self._recorder.allocated()
        hooks = self._recorder.hooks
        line: dict[str, Any] = {
            "rank": self._rank,
            "pid": os.getpid(),
            "step": hooks.step,
            "phase": hooks.phase,
            "allocated_bytes": allocated,
            "peak_bytes": peak,
            "events": events,
        }
        room = self._recorder.room()
        if room is not None:
            line |= dict(zip(("reserved_bytes", "free_bytes", "total_bytes"), room, strict=True))
        if not hooks.trains:
            line["requests"] = hooks.requests
        now = time.monotonic()
        if now >= self._parts_next or not self._parts.get("parameter"):
            self._parts_next = now + PARTS_SECONDS
            self._parts = hooks.held()
        line["parts"] = self._parts
        self._speaker.say(line)


@contextmanager
def announcing_interrupts(announce: Callable[[], None]) -> Iterator[None]:
    """`announce` is called when a SIGINT comes, also to a handler of the script's own.

    The script sets and sees its handlers as ever: `signal.signal` and `signal.getsignal` speak of those alone.
    """
    theirs: dict[int, Handler] = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    module: Any = signal
    set_handler, get_handler = module.signal, module.getsignal

    def arrived(number: int, frame: FrameType | None) -> None:
        announce()
        handler = theirs[number]
        if callable(handler):
            handler(number, frame)

    def wrapped(handler: Handler) -> Handler:
        return arrived if callable(handler) else handler  # SIG_IGN and SIG_DFL are no functions

    def signal_of_the_script(number: int, handler: Handler) -> Handler:
        if number != signal.SIGINT:
            return set_handler(number, handler)
        set_handler(number, wrapped(handler))
        previous, theirs[number] = theirs[number], handler
        return previous

    def handler_of_the_script(number: int) -> Handler:
        return theirs[number] if number == signal.SIGINT else get_handler(number)

    set_handler(signal.SIGINT, wrapped(theirs[signal.SIGINT]))
    module.signal, module.getsignal = signal_of_the_script, handler_of_the_script
    try:
        yield
    finally:
        module.signal, module.getsignal = set_handler, get_handler
        set_handler(signal.SIGINT, theirs[signal.SIGINT])
