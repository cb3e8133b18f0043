"""Phases, modules and roles, written onto the events of the virtual GPU. The `hooks.Sink` of this recorder.

The category of an allocation is the strongest role that any tensor on it ever had.
"""

import torch

from ...snapshots.model import Mark
from ..categories import ACTIVATION, RANK, TEMPORARY
from ..hooks import BACKWARD, FORWARD, OPTIMIZER, Hooks, living
from .device import VirtualDevice
from .private import raw_is_meta
from .storages import RECORDS, Kind, storage_key

_PHASE_CATEGORY = {FORWARD: ACTIVATION, BACKWARD: TEMPORARY, OPTIMIZER: TEMPORARY}


class Roles:
    """Writes what the hooks say; `hooks` is set by the session."""

    def __init__(self, device: VirtualDevice) -> None:
        self.device = device
        self.hooks: Hooks | None = None
        self.marks: list[list[Mark]] = [[Mark(event=0, step=1, phase="setup")] for _ in range(device.count)]

    def changed(self, phase: str, step: int, module: int) -> None:
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
        self.device.context.module = hooks.module_at(sequence)

    def finish(self) -> None:
        """Before a dump: roles of everything alive, also of models that were never called (a search of the heap)."""
        if self.hooks is not None:
            self.hooks.mark_everything(living(torch.nn.Module))
