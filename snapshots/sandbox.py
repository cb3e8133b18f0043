"""Reading a large file in a child process that may use only so much memory and time.

A hostile pickle can ask the C unpickler for more memory or time than its size can justify, or overflow its stack.
Small files are walked beforehand (`scanning`); for large ones that walk would cost more than loading them, so the
loading is fenced in instead: whatever happens to the child, the caller gets one clear error.
"""

import faulthandler
import gc
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import IO, NoReturn

from ..errors import UnreadableInputError
from . import store
from .model import Snapshot

if sys.platform != "win32":
    import resource

# Loading needs 4 to 10 bytes per byte of file, 11 ns each.
MEMORY_PER_BYTE = 32
MEMORY_FREE_BYTES = 1 << 30
SECONDS_PER_BYTE = 2e-7
SECONDS_FREE = 10
POLL_SECONDS = 0.02
_DONE, _UNREADABLE, _FAULT = 0, 3, 4


def available() -> bool:
    """Linux only: elsewhere an address-space limit is not enforced, or a fork is not safe."""
    return sys.platform == "linux"


class Reading:
    """`read()` under way in a child process. Call `result` exactly once, or `stop`."""

    def __init__(self, read: Callable[[], Snapshot], payload_bytes: int) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # shared with the child, closed by `result` or `stop`
        with warnings.catch_warnings():
            # numpy's idle threads make Python 3.12+ warn; the child calls nothing that needs them
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            _child(read, payload_bytes, self._file)

    def result(self, while_waiting: Callable[[], None] | None = None) -> Snapshot:
        """Wait for it; its UnreadableInputError is raised here. `while_waiting` is called some times a second."""
        try:
            status = self._wait(while_waiting)
        except BaseException:
            self.stop()
            raise
        with self._file as file:
            file.seek(0)
            if status == _DONE:
                snapshot, _ = store.read(file.read())
                return snapshot
            message = file.read().decode("utf-8", "replace")
        if status == _FAULT:
            raise RuntimeError(f"reading failed in the child process:\n{message}")
        raise UnreadableInputError(_reason(status, message))

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._file.close()

    def _wait(self, while_waiting: Callable[[], None] | None) -> int:
        """Exit status of the child; minus the signal that killed it."""
        while while_waiting is not None:
            while_waiting()
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(POLL_SECONDS)
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)


def _child(read: Callable[[], Snapshot], payload_bytes: int, result: IO[bytes]) -> NoReturn:
    status = _FAULT
    try:
        gc.disable()
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _limit(payload_bytes)
        store.write(read(), result, {})
        status = _DONE
    except UnreadableInputError as error:
        result.write(str(error).encode("utf-8", "replace"))
        status = _UNREADABLE
    except MemoryError:
        status = _UNREADABLE
        result.write(b"it needs more memory than its size can justify")
    except Exception:
        result.write(traceback.format_exc().encode("utf-8", "replace"))
    finally:
        result.flush()
        os._exit(status)


def _limit(payload_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    memory = used + MEMORY_FREE_BYTES + MEMORY_PER_BYTE * payload_bytes
    seconds = SECONDS_FREE + int(SECONDS_PER_BYTE * payload_bytes)
    for kind, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _reason(status: int, message: str) -> str:
    if status == _UNREADABLE and message:
        return message
    if status == -signal.SIGXCPU:
        return "reading it takes far longer than its size can justify"
    if status == -signal.SIGKILL:
        return "reading it was stopped, most likely because this machine has too little memory for it"
    return f"it is damaged so that reading it fails (status {status}); nothing in it was executed"
