"""What the hooks say of a job on a real GPU, kept until the events of the device can be read.

Python does not see a device's events as they happen. So each change of phase is kept with how often the allocator had
handed out and taken back a block by then, and each role of a tensor with its address and the same count: together
they name one event, without a clock. `placing` finds it.
"""

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable
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
        self._told: dict[int, int | None] = {}  # id of a parameter, buffer or state -> its data when last told of
        self._told_gradients: dict[int, int | None] = {}  # the same since the last backward began
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

    def mark_all(self, tensors: Iterable[torch.Tensor], category: int) -> None:
        if category not in _LASTING:
            for tensor in tensors:
                self.mark(tensor, category)
            return
        known = self._told if category != GRADIENT else self._told_gradients
        for tensor in tensors:  # told at every step, and most often of the same allocation
            told = known.get(id(tensor))
            if told is not None and told == tensor.data_ptr():
                continue
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # sparse, fake, lazy: no address
                known[id(tensor)] = tensor.data_ptr() or None  # a meta tensor's tells nothing
            self.mark(tensor, category)

    def mark(self, tensor: torch.Tensor, category: int) -> None:
        found = self.accelerator.address_of(tensor)
        if found is None:
            return
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
        strongest: dict[int, dict[int, int]] = {}  # by device and address
        for device, address, category in pending:
            of_device = strongest.setdefault(device, {})
            if RANK[category] > RANK[of_device.get(address, -1)]:
                of_device[address] = category
        for device, roles in strongest.items():
            log, count = self.devices[device], self.accelerator.counted(device).allocations
            if log.known_by and count < log.known_by[-1]:
                log.forget()
                log.restarted = True
            log.address.extend(roles)
            log.category.extend(roles.values())
            log.known_by.extend([count] * len(roles))
