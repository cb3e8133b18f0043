"""Loading a pickle that a stranger sent: plain values only, nothing imported, nothing called."""

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn

from ..errors import UnreadableInputError


class RefusedGlobalError(UnreadableInputError):
    """The pickle asked for a class or a function. A snapshot needs none, so it is something else, or an attack."""


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


def load(file: IO[bytes]) -> object:
    """The first pickle in `file`; bytes after its end are ignored (memory_viz pads with NUL).

    Raises UnreadableInputError with a reason that completes the sentence "<path> is not a snapshot: ...".
    """
    try:
        with collector_paused():
            return PlainUnpickler(file).load()
    except UnreadableInputError:
        raise
    except (EOFError, pickle.UnpicklingError) as error:
        reason = "the pickle is cut off" if _is_cut(error) else "the pickle is damaged"
        raise UnreadableInputError(f"{reason} ({printable(str(error), 80)})") from None
    except MemoryError:
        raise UnreadableInputError("the pickle asks for more memory than there is") from None
    except Exception as error:
        # the C unpickler raises nearly anything on opcodes out of order: IndexError, AttributeError, ValueError, ...
        raise UnreadableInputError(f"the pickle is damaged ({type(error).__name__})") from None


def _is_cut(error: Exception) -> bool:
    return isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error)
