"""Live bytes by category and line: the user's code first, library frames folded below it."""

import re
from collections.abc import Sequence
from functools import lru_cache

from ..snapshots.model import Snapshot
from .attribution.stacks import library_location, outermost_user_location, user_location
from .interface import CallSite, Category, LiveBlock, Location

_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")


def like_module(module: str | None) -> str | None:
    """`blocks.3.mlp` as `blocks.*.mlp`: the modules that share one line of code."""
    return None if module is None else _INDEX.sub("*", module)


def module_label(module: str) -> str:
    """The module in words, where its path alone says nothing: children of an nn.Sequential at the top are `0`, `1`."""
    head, _, rest = module.partition(".")
    if head != "*" and not head.isdigit():
        return module
    owner = "the model's children" if head == "*" else f"the model's child {head}"
    return f"{rest} of {owner}" if rest else owner


class Lines:
    """Locations of the stacks of one snapshot, each looked up once."""

    def __init__(self, snapshot: Snapshot) -> None:
        stacks = snapshot.stacks
        self.user = lru_cache(maxsize=None)(lambda stack: user_location(stacks.of(stack)))
        self.script = lru_cache(maxsize=None)(lambda stack: outermost_user_location(stacks.of(stack)))
        self.library = lru_cache(maxsize=None)(lambda stack: library_location(stacks.of(stack)))

    def of(self, stack: int) -> Location | None:
        """The innermost line of user code, else of a library other than torch; None without a stack."""
        if stack < 0:
            return None
        return self.user(stack) or self.library(stack)

    def below(self, stack: int) -> Location | None:
        """The line of a package other than torch that the user's line led to; None where theirs is the innermost."""
        if stack < 0 or self.user(stack) is None:
            return None
        innermost = self.library(stack)
        return innermost if innermost != self.user(stack) else None


def group(blocks: Sequence[LiveBlock], lines: Lines) -> tuple[CallSite, ...]:
    """One row per category, line and module, largest first; their bytes sum to those of `blocks`."""
    sums: dict[tuple[Category, Location | None, str | None], list[int]] = {}
    for block in blocks:
        entry = sums.setdefault((block.category, lines.of(block.stack), block.module), [0, 0])
        entry[0] += block.requested_bytes
        entry[1] += 1
    rows = [
        CallSite(bytes=total, count=count, category=category, location=location, module=module)
        for (category, location, module), (total, count) in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))
