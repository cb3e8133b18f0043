"""What a framework's adapter is: text in, text out, and what it could not write."""

import difflib
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
            self.before.splitlines(keepends=True),
            self.text.splitlines(keepends=True),
            fromfile=f"a/{name}" if self.before else "/dev/null",  # as `git apply` wants a new file
            tofile=f"b/{name}",
        )
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the plan was made for; kept in oomdoc.yaml."""

    script: str | None = None
    gpu: str | None = None
    world_size: int | None = None
    batch_size: int | None = None  # per GPU, before the plan
    peak_bytes: int | None = None
    step_time_factor: float | None = None


class Framework(Protocol):
    """One kind of config file: a module with these names."""

    NAME: str
    TITLE: str
    VERSION: str  # what its keys were taken from

    def recognises(self, text: str) -> bool:
        """Whether this is a file of the framework."""
        ...

    def patch(self, text: str, settings: Sequence[Setting], target: Target) -> Patch:
        """`text` ("" for a new file) with the settings; other keys, their order and comments stay.

        Raises OomdocError for a file that is not the framework's, or in which the batch cannot be kept.
        """
        ...
