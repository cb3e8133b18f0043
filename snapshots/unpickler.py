"""Loading a pickle that a stranger sent: plain values only, nothing imported, nothing called."""

import gc
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn

from ..errors import UnreadableInputError
from . import scanning

MAX_NAME_BYTES = 4096
MAX_OPCODE_BYTES = 5
CUT_OFF = "was it copied before it was written whole?"


class RefusedGlobalError(UnreadableInputError):
    """The pickle asked for a class or a function. A snapshot needs none, so it is something else, or an attack."""


class OddPickleError(UnreadableInputError):
    """The pickle has an opcode that PyTorch's snapshots do not; to load it is safe only within bounds (`sandbox`)."""


class PlainUnpickler(pickle.Unpickler):
    """Builds dicts, lists, tuples, strings and numbers; refuses every global and every persistent id."""

    def find_class(self, module: str, name: str) -> NoReturn:
        wanted = printable(f"{module}.{name}", 80)
        raise RefusedGlobalError(f"it asks Python to import {wanted}, which no snapshot needs; nothing was executed")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RefusedGlobalError("it asks for a persistent object, which no snapshot needs; nothing was executed")


def printable(text: str, limit: int) -> str:
    """`text` from an untrusted file as one line of printable characters, at most `limit` long."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


@contextmanager
def collector_paused() -> Iterator[None]:
    """Cyclic garbage collection off: a snapshot is millions of containers and no cycles, so each pass is wasted."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def load_scanned(data: bytes) -> object:
    """The first pickle in `data`, after a walk over its opcodes has shown that loading it is harmless.

    Bytes after its end are ignored (memory_viz pads with NUL). Raises UnreadableInputError with a reason that
    completes the sentence "<path> is not a snapshot: ...".
    """
    refused = scanning.first_refused(data)
    if refused is None:
        return load(io.BytesIO(data))
    if refused.opcode < 0:
        raise UnreadableInputError(f"the pickle is cut off ({len(data)} bytes and no end): {CUT_OFF}")
    if refused.imports:
        # what comes before is harmless, so the unpickler may go on to the opcode that says what is asked for
        named = refused.opcode in scanning.NAMED_IMPORTS
        try:
            load(io.BytesIO(data[: refused.position + (MAX_NAME_BYTES if named else MAX_OPCODE_BYTES)]))
        except RefusedGlobalError:
            raise
        except UnreadableInputError:
            pass
        raise RefusedGlobalError("it asks Python to build an object, which no snapshot needs; nothing was executed")
    raise OddPickleError(
        f"the pickle is damaged, or no snapshot (byte 0x{refused.opcode:02x} at {refused.position} is no opcode that "
        "PyTorch's snapshots have)"
    )


def load(file: IO[bytes]) -> object:
    """The same for a `file` that is not walked first: only where memory and time are bounded otherwise."""
    try:
        with collector_paused():
            return PlainUnpickler(file).load()
    except UnreadableInputError:
        raise
    except (EOFError, pickle.UnpicklingError) as error:
        text = printable(str(error), 80)
        reason = f"the pickle is cut off ({text}): {CUT_OFF}" if _is_cut(error) else f"the pickle is damaged ({text})"
        raise UnreadableInputError(reason) from None
    except MemoryError:
        raise UnreadableInputError("the pickle asks for more memory than there is") from None
    except Exception as error:
        # the C unpickler raises nearly anything on opcodes out of order: IndexError, AttributeError, ValueError, ...
        raise UnreadableInputError(f"the pickle is damaged ({type(error).__name__})") from None


def _is_cut(error: Exception) -> bool:
    return isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error)
