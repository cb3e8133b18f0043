"""The one place where an exception becomes a line and an exit status."""

import sys

from ..errors import OomdocError

INTERRUPTED = 130
FAULT = 4


def exit_status(error: BaseException) -> int:
    """Says on stderr what happened; -> the status to exit with."""
    if isinstance(error, OomdocError):
        sys.stderr.write(f"oomdoc: {' '.join(str(error).split())}\n")
        return error.exit_status
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("oomdoc: interrupted\n")
        return INTERRUPTED
    from .fault import describe

    assert isinstance(error, Exception)
    sys.stderr.write(describe(error))
    return FAULT
