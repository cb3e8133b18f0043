"""Registry of the made-up jobs that the contract tests loop over, and what each job is built with."""

from collections.abc import Callable
from typing import Any

from oomdoc.snapshots.model import Snapshot

UNIT = 32 << 20  # sizes are multiples of it: segments of 20 MiB are small beside them
Kit = Any  # the namespace of conftest.kit
Made = Snapshot | tuple[Snapshot, ...]  # of one process, or of several ranks
OWN: dict[str, Callable[[Kit], Made]] = {}
NEAR: dict[str, Callable[[Kit], Made]] = {}


def own(code: str) -> Callable[[Callable[[Kit], Made]], Callable[[Kit], Made]]:
    return lambda make: OWN.setdefault(code, make)


def near(code: str) -> Callable[[Callable[[Kit], Made]], Callable[[Kit], Made]]:
    return lambda make: NEAR.setdefault(code, make)
