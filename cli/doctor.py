"""`oomdoc doctor`: what this machine has, and what oomdoc can do here."""

import os
import sys
from dataclasses import dataclass

import typer

from .. import __version__
from ..errors import OomdocError
from ..recorders.nvml import Card, cards
from .output import put

EPILOG = """Examples:

[bold]oomdoc doctor[/bold]  before the first run, and in a bug report
"""

OLDEST_TORCH = (2, 6)
_CONF_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, whether it is as it should be, and what to do otherwise."""

    name: str
    good: bool | None  # None: told, not judged
    text: str


def doctor() -> None:
    """Tell what this machine has (GPUs, who holds their memory, torch, allocator settings) and what works here.

    Exit status 1 when something that a run needs is missing.
    """
    checks = [_python(), _torch(), *_gpus(), *_settings(), _virtual()]
    marks = {True: "ok  ", False: "BAD ", None: "    "}
    wide = max(len(check.name) for check in checks)
    lines = [f"oomdoc {__version__}"] + [f"{marks[check.good]}{check.name:<{wide}}  {check.text}" for check in checks]
    put("\n".join(lines) + "\n")
    if any(check.good is False for check in checks):
        raise typer.Exit(1)


def _python() -> Check:
    import platform

    return Check("Python", sys.version_info >= (3, 10), f"{platform.python_version()} at {sys.executable}")


def _torch() -> Check:
    from .fault import installed

    version = installed("torch")
    if version == "not installed":
        return Check("torch", False, "not installed here: reports work, runs need `pip install torch`")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        return Check("torch", False, f"{version}: oomdoc run needs 2.6 or newer")
    return Check("torch", True, version)


def _gpus() -> list[Check]:
    found = cards()
    if isinstance(found, str):
        return [Check("GPUs", None, f"none seen ({found}): oomdoc run uses the virtual GPU")]
    return [Check(f"GPU {card.index}", None, _card(card)) for card in found]


def _card(card: Card) -> str:
    from ..reports.text import size

    holders = ", ".join(f"process {pid} {size(used)}" for pid, used in card.processes)
    return (
        f"{card.name}: {size(card.used_bytes)} of {size(card.total_bytes)} in use"
        f"{f' ({holders})' if holders else ''}, driver {card.driver}"
    )


def _settings() -> list[Check]:
    return [_setting(name, os.environ[name]) for name in _CONF_VARIABLES if name in os.environ]


def _setting(name: str, value: str) -> Check:
    from ..allocator.config import parse

    try:
        parse(value)
    except (OomdocError, ValueError) as error:
        return Check(name, False, f"{value!r}: {error}")
    return Check(name, True, value)


def _virtual() -> Check:
    from ..configs.loader import gpus
    from .fault import installed

    if installed("torch") == "not installed":
        return Check("virtual GPU", False, "needs torch (a CPU build is enough)")

    return Check("virtual GPU", None, f"oomdoc run --virtual --gpu NAME train.py; {len(gpus())} cards known")
