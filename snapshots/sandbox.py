"""Reading a large file in a child process that may use only so much memory and time.

A hostile pickle can ask the C unpickler for more memory or time than its size can justify, or overflow its stack.
Small files are walked beforehand (`scanning`); for large ones that walk would cost more than loading them, so the
loading is fenced in instead: whatever happens to the child, the caller gets one clear error.
"""

import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import IO, NoReturn

from ..errors import UnreadableInputError
from . import store
from .model import Snapshot

# Loading needs 4 to 10 bytes per byte of file, 11 ns each.
MEMORY_PER_BYTE = 32
MEMORY_FREE_BYTES = 1 << 30
SECONDS_PER_BYTE = 2e-7
SECONDS_FREE = 10
_DONE, _UNREADABLE, _FAULT = 0, 3, 4


def available() -> bool:
    """Linux only: elsewhere an address-space limit is not enforced, or a fork is not safe."""
    return sys.platform == "linux"


def run(read: Callable[[], Snapshot], payload_bytes: int) -> Snapshot:
    """`read()` in a child; its UnreadableInputError is raised here."""
    with tempfile.TemporaryFile() as result:
        with warnings.catch_warnings():
            # numpy's idle threads make Python 3.12+ warn; the child calls nothing that needs them
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _child(read, payload_bytes, result)
        status = _wait(child)
        result.seek(0)
        if status == _DONE:
            snapshot, _ = store.read(result.read())
            return snapshot
        message = result.read().decode("utf-8", "replace")
        if status == _FAULT:
            raise RuntimeError(f"reading failed in the child process:\n{message}")
        raise UnreadableInputError(_reason(status, message))


def _child(read: Callable[[], Snapshot], payload_bytes: int, result: IO[bytes]) -> NoReturn:
    status = _FAULT
    try:
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
    import resource

    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    memory = used + MEMORY_FREE_BYTES + MEMORY_PER_BYTE * payload_bytes
    seconds = SECONDS_FREE + int(SECONDS_PER_BYTE * payload_bytes)
    for kind, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _wait(child: int) -> int:
    """Exit status of the child; minus the signal that killed it."""
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(status)


def _reason(status: int, message: str) -> str:
    if status == _UNREADABLE and message:
        return message
    if status == -signal.SIGXCPU:
        return "reading it takes far longer than its size can justify"
    if status == -signal.SIGKILL:
        return "reading it was stopped, most likely because this machine has too little memory for it"
    return f"it is damaged so that reading it fails (status {status}); nothing in it was executed"
