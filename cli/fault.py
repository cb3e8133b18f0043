"""A fault of oomdoc itself, as lines that can be pasted into an issue."""

import platform
import shlex
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version

from .. import __version__


def describe(error: Exception) -> str:
    """Versions, the command and the traceback. Nothing of the snapshot or the environment is in it."""
    command = shlex.join(["oomdoc", *sys.argv[1:]])
    trace = "".join(traceback.format_exception(error)).rstrip()
    return (
        "oomdoc: a fault of oomdoc itself, not of your script. Please report it with these lines:\n"
        f"\n  oomdoc {__version__}, torch {installed('torch')}, Python {platform.python_version()}, "
        f"{platform.platform()}\n  $ {command}\n\n{trace}\n"
    )


def installed(package: str) -> str:
    """The version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
