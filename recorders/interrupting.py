"""Signals to the launcher, on their way to the process that runs the script."""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

GRACE_SECONDS = 3.0  # in which the child says that it has the SIGINT too, also on a machine under load
FORWARDED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR2", "SIGCONT")

Child = subprocess.Popen[bytes]


class Interrupts:
    """SIGINT to us. From a terminal it goes to the child as well, which says so; if it does not, we pass it on.

    A script that cleans up after the first one is not disturbed by the same one twice. A second one terminates it.
    """

    def __init__(self, child: Child) -> None:
        self.child = child
        self.received = threading.Event()
        self.terminated = False
        self._pending: threading.Timer | None = None

    def handle(self, number: int, _: object) -> None:
        if self._pending is None:
            self._pending = threading.Timer(GRACE_SECONDS, self._pass_on)
            self._pending.daemon = True
            self._pending.start()
        else:
            self.terminated = True
            send(self.child, signal.SIGTERM)

    def _pass_on(self) -> None:
        if not self.received.is_set():
            send(self.child, signal.SIGINT)

    def cancel(self) -> None:
        if self._pending is not None:
            self._pending.cancel()


def send(child: Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


@contextmanager
def forwarding(child: Child, interrupts: Interrupts, dump: Callable[[], None]) -> Iterator[None]:
    """Every signal that ends or steers a job goes on to the child; SIGINT where it has not come to it.

    SIGUSR1 asks for a dump: `dump` brings it to the ranks, of which a launcher in between would know nothing.
    """

    def forward(number: int, _: object) -> None:
        send(child, number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {getattr(signal, name): forward for name in FORWARDED if hasattr(signal, name)}
    handlers[signal.SIGINT] = interrupts.handle
    if hasattr(signal, "SIGUSR1"):
        handlers[signal.SIGUSR1] = lambda *_: dump()
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        interrupts.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)
