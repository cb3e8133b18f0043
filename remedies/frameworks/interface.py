"""What a framework's adapter is: text in, text out, and what it could not write."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..interface import NotApplicable, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The config with the settings in it. `text` equals `before` when there was nothing to change."""

    framework: str
    before: str
    text: str
    notes: tuple[str, ...] = ()
    unsupported: tuple[NotApplicable, ...] = ()  # settings that this framework's file cannot express, and why

    def diff(self, name: str) -> str:
        """Unified; empty when nothing changes."""
        lines = difflib.unified_diff(
            _lines(self.before),
            _lines(self.text),
            fromfile=f"a/{name}" if self.before else "/dev/null",  # as `git apply` wants a new file
            tofile=f"b/{name}",
        )
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """As `patch` counts them: `str.splitlines` would also break at form feeds and the like."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the plan was made for, as oomdoc.yaml keeps it; `framework_version` is what the file is for."""

    script: str | None = None
    gpu: str | None = None
    world_size: int | None = None
    batch_size: int | None = None  # per GPU, before the plan
    peak_bytes: int | None = None
    step_time_factor: float | None = None
    framework_version: str | None = None


class Framework(Protocol):
    """One kind of config file: a module with these names."""

    NAME: str
    TITLE: str
    VERSION: str  # the release that its keys were tried with
    NEW_FILE: str | None  # what a file made from nothing is called; None where it would not be whole

    def recognises(self, text: str) -> bool:
        """Whether this is a file of the framework."""
        ...

    def patch(self, text: str, settings: Sequence[Setting], target: Target) -> Patch:
        """`text` ("" for a new file) with the settings; other keys, their order and comments stay.

        Raises OomdocError for a file that is not the framework's, or in which the batch cannot be kept.
        """
        ...
