"""Whether an error of the script's own may follow from a value that a real GPU would have computed."""

import os
import traceback
from collections.abc import Sequence

from .outcome import in_chain

MOST_PLACES = 3  # named: those of a function that failed first, then the latest first
# A file that is not there, a host that does not answer, a package that is not installed, a name that nobody wrote: no
# value of a tensor leads there. What a library makes of it has it as its cause.
_OF_THE_WORLD = (OSError, ImportError, SyntaxError, NameError, MemoryError, EOFError)


def hint(error: BaseException, reads: Sequence[tuple[str, int]]) -> str | None:
    """`reads`: file and line where an assumed value was given to the script, the latest last."""
    if not reads or any(in_chain(error, kind) is not None for kind in _OF_THE_WORLD):
        return None
    failed = {
        (frame.f_code.co_filename, line)
        for frame, _ in traceback.walk_tb(error.__traceback__)
        for _, _, line in frame.f_code.co_lines()
    }
    latest_first = list(reads)[::-1]
    places = sorted(latest_first, key=lambda each: each not in failed)
    named = ", ".join(f"{_short(file)}:{line}" for file, line in places[:MOST_PLACES])
    more = f" and {len(places) - MOST_PLACES} more places" if len(places) > MOST_PLACES else ""
    near = ", in the function that failed" if places[0] in failed else ""
    return (
        f"values read from the GPU were assumed at {named}{more}{near}: the {type(error).__name__} may come from that"
    )


def _short(file: str) -> str:
    """Relative to the working directory where the file is below it."""
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative
