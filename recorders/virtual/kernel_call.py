"""The scratch of one kernel call, taken and given back in the kernel's own order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...diagnosers.interface import CATEGORIES, Category
from .private import current_graph_task_id
from .scratch import Scratch

if TYPE_CHECKING:
    from .tracker import Tracker

WORKSPACE = CATEGORIES.index(Category.WORKSPACE.value)
TEMPORARY = CATEGORIES.index(Category.TEMPORARY.value)


class KernelCall:
    """`begin`, then the operation's outputs, then `finish`; `abandon` when either raises."""

    __slots__ = ("_index", "_next", "_taken", "_tracker", "_wanted")

    def __init__(self, tracker: "Tracker", wanted: Sequence[Scratch], index: int) -> None:
        self._tracker = tracker
        self._wanted = wanted
        self._index = index
        self._next = 0
        self._taken: dict[int, int] = {}  # number of the scratch -> address

    def begin(self) -> None:
        """Take what the kernel allocates before its outputs."""
        while self._next < len(self._wanted) and self._wanted[self._next].before:
            self._take()
        self._drop_until(self._next)

    def finish(self) -> None:
        """Take the rest, then free everything, newest first."""
        while self._next < len(self._wanted):
            self._take()
        self.abandon()

    def abandon(self) -> None:
        for number in reversed(list(self._taken)):
            self._free(number)

    def _take(self) -> None:
        number, tracker = self._next, self._tracker
        self._next += 1
        self._drop_until(number)
        each = self._wanted[number]
        if each.kind == "trial":
            if (self._index, each.key) in tracker.tried:
                return
            tracker.tried.add((self._index, each.key))
            tracker.device.empty_cache(self._index)
        if each.estimated:
            tracker.note_estimate(each.source, each.bytes)
        if not each.bytes:
            return
        device, context = tracker.device, tracker.device.context
        context.stack = device.stacks.capture(4)
        category = context.category
        context.category = WORKSPACE if each.is_workspace else TEMPORARY
        try:
            if each.kind == "handle":
                self._handle(each)
            else:
                self._taken[number] = device.scratch(each.bytes, self._index, estimated=each.estimated)
        except BaseException:
            self.abandon()
            raise
        finally:
            context.category = category

    def _handle(self, each: Scratch) -> None:
        """A handle's workspace outlives the call: one per device, stream, thread role and library."""
        tracker, device = self._tracker, self._tracker.device
        key = (self._index, device.streams[self._index], current_graph_task_id() != -1, each.source)
        if key not in tracker.handles:
            tracker.handles[key] = device.scratch(each.bytes, self._index, estimated=each.estimated)

    def _drop_until(self, number: int) -> None:
        for earlier in reversed([n for n in self._taken if self._wanted[n].until == number]):
            self._free(earlier)

    def _free(self, number: int) -> None:
        self._tracker.device.free(self._taken.pop(number), self._index)
