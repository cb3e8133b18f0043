"""The scratch of one kernel call, taken and given back in the kernel's own order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

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
        if each.estimated:
            tracker.note_estimate(each.source, each.bytes)
        if not each.bytes and each.kind != "trial":
            if each.between is not None:
                tracker.device.might_take(each.between[1], self._index)
            return
        device, context = tracker.device, tracker.device.context
        handle = self._handle_key(each) if each.kind == "handle" else None
        if handle in tracker.handles:
            return
        context.stack = device.stacks.capture(4)
        category = context.category
        context.category = WORKSPACE if each.is_workspace else TEMPORARY
        try:
            if handle is not None:
                tracker.handles[handle] = self._scratch(each, each.bytes)
            elif each.kind == "trial":
                self._try(each)
            elif each.instead:
                self._fit(number, each)
            else:
                self._taken[number] = self._scratch(each, each.bytes)
        except BaseException:
            self.abandon()
            raise
        finally:
            context.category = category

    def _handle_key(self, each: Scratch) -> tuple[int, int, bool, str]:
        """A handle's workspace outlives the call: one per device, stream, thread role and library."""
        stream = self._tracker.device.streams[self._index]
        return self._index, stream, current_graph_task_id() != -1, each.source

    def _scratch(self, each: Scratch, nbytes: int) -> int:
        between = None
        if each.estimated:
            between = each.between if each.between and nbytes == each.bytes else (0, 2 * nbytes)
        return self._tracker.device.scratch(nbytes, self._index, estimated=each.estimated, between=between)

    def _fit(self, number: int, each: Scratch) -> None:
        """The first size that finds memory; that others do not is no out-of-memory of the job."""
        failed = each.bytes + 1
        for nbytes in (each.bytes, *each.instead):
            if nbytes == 0:
                return
            if nbytes < failed:
                with self._tracker.device.unlogged_failure():
                    try:
                        self._taken[number] = self._scratch(each, nbytes)
                        return
                    except torch.OutOfMemoryError:
                        failed = nbytes
        self._taken[number] = self._scratch(each, min(each.bytes, *each.instead))

    def _try(self, each: Scratch) -> None:
        """The greediest that fits is held for a moment (Conv_v8.cpp generate_and_filter_plans), then the cache goes."""
        device = self._tracker.device
        room = device.largest_free(self._index)
        device.brief_peak(min(each.bytes, room), self._index)
        nbytes = max((size for size in each.instead if size <= room), default=0)
        while nbytes:
            with device.unlogged_failure():
                try:
                    held = device.scratch(nbytes, self._index, estimated=True, between=(0, nbytes))
                    device.free(held, self._index)
                    break
                except torch.OutOfMemoryError:
                    nbytes //= 2
        device.empty_cache(self._index)

    def _drop_until(self, number: int) -> None:
        for earlier in reversed([n for n in self._taken if self._wanted[n].until == number]):
            self._free(earlier)

    def _free(self, number: int) -> None:
        self._tracker.device.free(self._taken.pop(number), self._index)
