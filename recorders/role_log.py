"""What the hooks say of a job on a real GPU, kept until the events of the device can be read.

Python does not see a device's events as they happen. So each change of phase is kept with how often the allocator had
handed out and taken back a block by then, and each role of a tensor with its address and the same count: together
they name one event, without a clock. `placing` finds it.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

import torch

from .accelerator import Accelerator
from .categories import RANK
from .hooks import BACKWARD, BUFFER, GRADIENT, INPUT, PARAMETER, SETUP, STATE, Hooks

RECOMPUTE = "recompute"  # within backward: activation checkpointing runs a forward again
PHASES = ("setup", "forward", "backward", "optimizer", "other", RECOMPUTE)
_LASTING = (PARAMETER, BUFFER, STATE, GRADIENT)
MOST_KEPT = 200_000  # changes, or roles; older ones than the history reaches are then dropped


@dataclass(slots=True)
class DeviceLog:
    """Columns of one device. Rows of `phase` are changes of phase, rows of `address` are roles."""

    allocations: "array[int]" = field(default_factory=lambda: array("Q"))
    frees: "array[int]" = field(default_factory=lambda: array("Q"))
    step: "array[int]" = field(default_factory=lambda: array("q"))
    request: "array[int]" = field(default_factory=lambda: array("q"))  # outermost forwards: steps, where none trains
    phase: "array[int]" = field(default_factory=lambda: array("b"))
    address: "array[int]" = field(default_factory=lambda: array("Q"))
    category: "array[int]" = field(default_factory=lambda: array("b"))
    known_by: "array[int]" = field(default_factory=lambda: array("Q"))  # allocations counted by the time of the role
    restarted: bool = False  # the script reset the counters: what came before cannot be placed

    def _changes(self) -> "tuple[array[int], ...]":
        return self.allocations, self.frees, self.step, self.request, self.phase

    def forget(self) -> None:
        for column in (*self._changes(), self.address, self.category, self.known_by):
            del column[:]

    def prune(self, reach: int) -> None:
        """Drop what happened before allocation number `reach`; the phase that is on then stays."""
        first = bisect_left(self.allocations, reach)
        for column in self._changes():
            del column[: max(0, first - 1)]
        first = bisect_left(self.known_by, reach)
        for column in (self.address, self.category, self.known_by):
            del column[:first]


class RoleLog:
    """`hooks.Sink` of a recorder on a real GPU; `hooks` is set by the recorder."""

    def __init__(self, accelerator: Accelerator, max_entries: int) -> None:
        self.accelerator = accelerator
        self.max_entries = max_entries
        self.hooks: Hooks | None = None
        self.devices: dict[int, DeviceLog] = {}
        self.inputs: dict[tuple[tuple[int, ...], str], int] = {}  # shape and dtype of what a model was called with
        self._pending: list[tuple[int, int, int]] = []  # device, address, category: counted at the next change
        self._module = -1
        self._at = (SETUP, 1)
        self._told: dict[int, tuple[int, int]] = {}  # id of a parameter, buffer or state -> where it was last told of
        self._told_gradients: dict[int, tuple[int, int]] = {}  # the same since the last backward began
        self._looked_in = 0  # the step in which devices were last looked for

    def changed(self, phase: str, step: int, module: int) -> None:
        hooks = self.hooks
        if module != self._module:
            self._module = module
            self.accelerator.label(hooks.modules[module] if hooks is not None and module >= 0 else "")
        if phase == BACKWARD and hooks is not None and hooks.recomputing:
            phase = RECOMPUTE
        if (phase, step) != self._at:
            self._at = (phase, step)
            if phase == BACKWARD:
                self._told_gradients.clear()
            self.count(phase, step)

    def tell_again(self) -> None:
        """Of everything: before a dump, where what was told may have moved without a word."""
        self._told.clear()
        self._told_gradients.clear()

    def mark(self, tensor: torch.Tensor, category: int) -> None:
        found = self.accelerator.address_of(tensor)
        if found is None:
            return
        if category in _LASTING:  # told at every step, and most often of the same allocation
            known = self._told if category != GRADIENT else self._told_gradients
            if known.get(id(tensor)) == found:
                return
            known[id(tensor)] = found
        device, address = found
        if device not in self.devices:
            self.devices[device] = DeviceLog()
        self._pending.append((device, address, category))
        if category == INPUT:
            key = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            self.inputs[key] = self.inputs.get(key, 0) + 1
        elif self._at[0] == SETUP:
            self.settle()  # the next change may be far, and the address another tensor's by then

    def count(self, phase: str, step: int) -> None:
        """The job is in `phase` of `step` from here on."""
        if step != self._looked_in or not self.devices:
            self._looked_in = step
            for device in self.accelerator.devices():
                self.devices.setdefault(device, DeviceLog())
        self.settle()
        code = PHASES.index(phase)
        for device, log in self.devices.items():
            counted = self.accelerator.counted(device)
            if log.allocations and counted.allocations < log.allocations[-1]:
                log.forget()
                log.restarted = True
            log.allocations.append(counted.allocations)
            log.frees.append(counted.frees)
            log.step.append(step)
            log.request.append(max(1, self.hooks.requests) if self.hooks is not None else 1)
            log.phase.append(code)
            if max(len(log.phase), len(log.address)) > MOST_KEPT:
                log.prune(max(0, counted.allocations - self.max_entries))

    def settle(self) -> None:
        """Give the roles heard of since the last count their place: nothing was allocated in between."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        counts = {device: self.accelerator.counted(device).allocations for device in {each[0] for each in pending}}
        strongest: dict[tuple[int, int], int] = {}
        for device, address, category in pending:
            key = (device, address)
            if RANK[category] > RANK[strongest.get(key, -1)]:
                strongest[key] = category
        for (device, address), category in strongest.items():
            log = self.devices[device]
            if log.known_by and counts[device] < log.known_by[-1]:
                log.forget()
                log.restarted = True
            log.address.append(address)
            log.category.append(category)
            log.known_by.append(counts[device])
