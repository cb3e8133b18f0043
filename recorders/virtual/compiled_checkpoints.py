"""Checkpointing by operation inside compiled code: what a policy saves and backward does not read is not kept.

Eagerly, `create_selective_checkpoint_contexts` keeps the result of each operation that its policy saves. Compiled, the
policy only forbids to compute the result again: the partitioner saves what the backward graph reads, or computes from,
and a result that ends in the block's own output (as of the last product before a residual sum) is neither
(torch/_functorch/partitioners.py solve_min_cut: a node that must be saved weighs only on the paths to backward).
"""

from typing import TYPE_CHECKING, Any

import torch

from .patching import Patches
from .private import checkpoint_hook, raw_is_meta, raw_storage, sac_entry
from .storages import RECORDS, StorageRecord

if TYPE_CHECKING:
    from .session import Session


def _entry(session: "Session") -> Any:
    class Entry(sac_entry):  # type: ignore[misc]  # a class of torch that has no types
        """One saved result; compiled code gives it up when its backward turns out not to need it."""

        val: Any

        def __init__(self, value: Any) -> None:
            super().__init__(value)
            fusion = session.tracker.fusion
            self._made: Any = None
            if fusion is not None and isinstance(value, torch.Tensor) and raw_is_meta(value):
                fusion.at_end(self._settle)

        def _settle(self, needed: dict[int, StorageRecord]) -> None:
            record = RECORDS.get(raw_storage(self.val)._cdata)
            if record is not None and needed.get(record.key) is not record:
                self._made = self.val.shape, self.val.stride(), self.val.dtype, self.val.device
                self.val = None

        def get_val(self, allow_cache_entry_mutation: bool) -> Any:
            if self._made is None:
                return super().get_val(allow_cache_entry_mutation)
            shape, strides, dtype, device = self._made  # asked for after all: as if it were computed again
            return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return Entry


def _hook(session: "Session") -> Any:
    class Hook(checkpoint_hook):  # type: ignore[misc]  # as above
        """Tells what autograd would save inside the checkpointed part: its backward reads that."""

        pack_hook: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            pack = self.pack_hook

            def seen(tensor: torch.Tensor) -> Any:
                if session.tracker.fusion is not None:
                    session.tracker.fusion.need((tensor,))
                return pack(tensor)

            self.pack_hook = seen

    return Hook


def _reentrant(session: "Session", original: Any) -> Any:
    class Reentrant(original):  # type: ignore[misc]  # as above
        """Compiled code has one kind of checkpoint: what to compute again is a mark on the nodes of its graph."""

        @staticmethod
        def apply(function: Any, preserve: bool, *args: Any) -> Any:
            fusion = session.tracker.fusion
            if fusion is None or not fusion.running():
                return original.apply(function, preserve, *args)
            return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)

    return Reentrant


def install(held: Patches, session: "Session") -> None:
    """torch.utils.checkpoint's three classes until `held` is restored."""
    import torch.utils.checkpoint as checkpoint

    held.set(checkpoint, "CheckpointFunction", _reentrant(session, checkpoint.CheckpointFunction))
    if sac_entry is not None and checkpoint_hook is not None:
        held.set(checkpoint, sac_entry.__name__, _entry(session))
        held.set(checkpoint, checkpoint_hook.__name__, _hook(session))
