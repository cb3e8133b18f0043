"""Phases, modules and roles, written onto the events of the virtual GPU. The `hooks.Sink` of this recorder.

The category of an allocation is the strongest role that any tensor on it ever had.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable

import torch

from ...snapshots.model import Mark
from ..categories import ACTIVATION, RANK, TEMPORARY
from ..hooks import BACKWARD, FORWARD, OPTIMIZER, Hooks, living
from .device import VirtualDevice
from .private import raw_is_meta, sequence_number
from .storages import RECORDS, Kind, storage_key

_PHASE_CATEGORY = {FORWARD: ACTIVATION, BACKWARD: TEMPORARY, OPTIMIZER: TEMPORARY}


class Roles:
    """Writes what the hooks say; `hooks` is set by the session."""

    def __init__(self, device: VirtualDevice) -> None:
        self.device = device
        self.hooks: Hooks | None = None
        self.marks: list[list[Mark]] = [[Mark(event=0, step=1, phase="setup")] for _ in range(device.count)]
        self._sequence = array("Q")  # autograd sequence numbers at which the running module changed ...
        self._sequence_module = array("i")  # ... and which one ran from there on

    def changed(self, phase: str, step: int, module: int) -> None:
        if phase != BACKWARD and (not self._sequence_module or self._sequence_module[-1] != module):
            self._sequence.append(max(sequence_number(), self._sequence[-1] if self._sequence else 0))
            self._sequence_module.append(module)
        context = self.device.context
        context.module = module
        recomputing = self.hooks is not None and self.hooks.recomputing
        context.phase_category = _PHASE_CATEGORY.get(FORWARD if recomputing else phase, -1)
        last = self.marks[0][-1]
        if last.phase == phase and last.step == step:
            return
        for index, marks in enumerate(self.marks):
            event = len(self.device.logs[index])
            self.device.phase_began[index] = event
            if marks[-1].event == event:
                marks.pop()
            marks.append(Mark(event=event, step=step, phase=phase))

    def mark_all(self, tensors: Iterable[torch.Tensor], category: int) -> None:
        for tensor in tensors:
            self.mark(tensor, category)

    def mark(self, tensor: torch.Tensor, category: int) -> None:
        if not raw_is_meta(tensor) or tensor.layout is not torch.strided:
            return
        record = RECORDS.get(storage_key(tensor))
        if record is None or record.kind is not Kind.CUDA or record.event < 0:
            return
        column = self.device.logs[record.index].category
        if RANK[category] > RANK[column[record.event]]:
            column[record.event] = category

    def at_node(self, sequence: int) -> None:
        """Backward came to a node: its allocations belong to the module that made the node."""
        hooks = self.hooks
        if hooks is None or hooks.recomputing or not 0 <= sequence < 1 << 62:
            return
        if hooks.phase != BACKWARD:
            hooks.backward_began()
        at = bisect_right(self._sequence, sequence) - 1
        self.device.context.module = self._sequence_module[at] if at >= 0 else -1

    def finish(self) -> None:
        """Before a dump: roles of everything alive, also of models that were never called (a search of the heap)."""
        if self.hooks is not None:
            self.hooks.mark_everything(living(torch.nn.Module))
