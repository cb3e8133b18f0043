"""Axolotl's YAML; its keys are in configs/frameworks/axolotl.yaml."""

from collections.abc import Sequence

from ..interface import Setting
from . import keys
from .interface import Patch, Target

NAME = "axolotl"
TITLE: str = keys.table(NAME)["title"]
VERSION: str = keys.table(NAME)["tried"]
NEW_FILE: str | None = None


def recognises(text: str) -> bool:
    return keys.recognises(NAME, text)


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    own: dict[str, keys.Handler] = {
        "fsdp": _sharded,
        "cpu-offload": _offloaded,
        "fused-optimizer": _fused,
        "gradient-accumulation": _cut,
    }
    ordered = sorted(settings, key=lambda each: each.name != "fsdp")
    return keys.patch(NAME, text, ordered, target, own)


def _sharded(draft: keys.Draft, setting: Setting) -> bool:
    return _leaves_it_to_deepspeed(draft, setting)


def _offloaded(draft: keys.Draft, setting: Setting) -> bool:
    if "optimizer_state" not in (setting.options.get("what") or ("optimizer_state",)):
        return False
    if _leaves_it_to_deepspeed(draft, setting):
        return True
    if draft.get("fsdp_config") is None:
        draft.refuse(setting.name, "Axolotl does it only under FSDP (fsdp_config) or DeepSpeed (deepspeed)")
        return True
    return False


def _leaves_it_to_deepspeed(draft: keys.Draft, setting: Setting) -> bool:
    file = draft.get("deepspeed")
    if not file:
        return False
    where = f"`oomdoc fix --config {file}` changes it there" if isinstance(file, str) else "change it there"
    draft.refuse(setting.name, f"the file leaves sharding to DeepSpeed (deepspeed: {file}): {where}")
    return True


def _fused(draft: keys.Draft, setting: Setting) -> bool:
    optimizer = draft.get("optimizer")
    if setting.options.get("fused", True) and optimizer not in (None, "adamw_torch", "adamw_torch_fused"):
        draft.refuse(setting.name, f"the optimizer is {optimizer}, which has no fused choice here")
        return True
    return False


def _cut(draft: keys.Draft, setting: Setting) -> bool:
    """`batch_size`, where it is given, is the effective batch, from which Axolotl makes the accumulation."""
    if draft.get("batch_size") is None:
        return keys.cut_batch(draft, setting)
    micro_batches = int(setting.options.get("micro_batches", 2))
    key = keys.batch_key(draft)
    batch = keys.whole(draft, key, draft.table["batch"]["default"])
    total = keys.whole(draft, "batch_size", None)
    accumulation = total // (batch * (draft.target.world_size or 1))
    if not keys.already_cut(draft, batch, accumulation, micro_batches, "the accumulation that batch_size makes"):
        draft.set(key, keys.divided(draft, key, batch, micro_batches))
    return True
