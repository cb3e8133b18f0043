"""Which remedies a finding still suggests, by what the recording knows of the job: not what it has already."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..snapshots.model import Recording

_Facts = Mapping[str, Any]


def _in_half_precision(facts: _Facts) -> bool:
    """Under autocast, gathered in another type by FSDP, or without a float32 parameter."""
    parameters = facts.get("parameters") or {}
    sizes = parameters.get("bytes_of_dtype") or {}
    return bool(facts.get("autocast") or parameters.get("gathered_dtype") or (sizes and "float32" not in sizes))


def _checkpoints(facts: _Facts) -> bool:
    return bool(facts.get("recomputes"))


def _shards(facts: _Facts) -> bool:
    return bool((facts.get("parameters") or {}).get("sharded"))


IN_USE: dict[str, Callable[[_Facts], bool]] = {
    "mixed-precision": _in_half_precision,
    "activation-checkpointing": _checkpoints,
    "fsdp": _shards,
}
NEED_MORE_GPUS = ("fsdp",)


def suited(remedies: Sequence[str], recording: Recording | None) -> tuple[str, ...]:
    """Without what the job uses already; on one GPU, what needs several comes last.

    As they are without a recording, and where none would be left: a cause that names one remedy means its settings.
    """
    if recording is None:
        return tuple(remedies)
    left = [name for name in remedies if name not in IN_USE or not IN_USE[name](recording.facts)]
    if recording.world_size == 1:
        left.sort(key=lambda name: name in NEED_MORE_GPUS)
    return tuple(left or remedies)
