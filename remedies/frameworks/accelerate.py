"""The YAML of `accelerate config`, for FSDP and for DeepSpeed; keys in configs/frameworks/accelerate_*.yaml."""

from collections.abc import Sequence

from ...errors import OomdocError
from ..interface import Setting
from . import keys, versions
from .interface import Patch, Target

NAME = "accelerate"
_FSDP, _DEEPSPEED = "accelerate_fsdp", "accelerate_deepspeed"
TITLE: str = keys.table(_FSDP)["title"]
VERSION: str = keys.table(_FSDP)["tried"]
NEW_FILE: str | None = None
FSDP2_SINCE = "1.6"  # 1.2 has no --fsdp_version


def recognises(text: str) -> bool:
    return keys.recognises(_FSDP, text)


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    if not text.strip():
        raise OomdocError("an accelerate config says which machines there are: make it with `accelerate config` first.")
    draft = keys.Draft(_FSDP, text, target)
    file = draft.get("deepspeed_config.deepspeed_config_file")
    if file is not None:
        raise OomdocError(
            f"this accelerate config leaves DeepSpeed's settings to {file}: `oomdoc fix --config {file}` changes those."
        )
    if draft.get("distributed_type") == "DEEPSPEED":
        return keys.patch(_DEEPSPEED, text, settings, target)
    own = {"fsdp": _fsdp, "activation-checkpointing": _with_fsdp, "cpu-offload": _with_fsdp}
    # sharding first: the others' keys are FSDP's
    ordered = sorted(settings, key=lambda each: each.name != "fsdp")
    return keys.patch(_FSDP, text, ordered, target, own)


def _fsdp(draft: keys.Draft, setting: Setting) -> bool:
    """FSDP2, unless the file has FSDP1's settings already: then those, which say the same in other words."""
    kind = draft.get("distributed_type")
    if kind not in (None, "NO", "FSDP", "MULTI_GPU"):
        draft.refuse(setting.name, f"the file is for distributed_type {kind}")
        return True
    reshard = bool(setting.options.get("reshard_after_forward", True))
    first = draft.get("fsdp_config") is not None and draft.get("fsdp_config.fsdp_version") in (None, 1, "1")
    if not first and versions.lacks(draft.version, FSDP2_SINCE):
        draft.refuse(setting.name, f"FSDP2 needs accelerate {FSDP2_SINCE} or newer, and {draft.version} is used")
        return True
    keys.write_variant(draft, setting, setting.name)
    if first:
        old = draft.get("fsdp_config.fsdp_sharding_strategy") is not None
        key = "fsdp_sharding_strategy" if old else "fsdp_reshard_after_forward"
        draft.set(f"fsdp_config.{key}", "FULL_SHARD" if reshard else "SHARD_GRAD_OP")
    else:
        draft.set("fsdp_config.fsdp_version", 2)
        draft.set("fsdp_config.fsdp_reshard_after_forward", reshard)
    _enough_processes(draft)
    return True


def _enough_processes(draft: keys.Draft) -> None:
    processes, world_size = draft.get("num_processes"), draft.target.world_size
    if isinstance(processes, int) and processes > 1:
        return
    if world_size is not None and world_size > 1:
        draft.set("num_processes", world_size)
    else:
        draft.note("num_processes has to be the number of GPUs to shard over")


def _with_fsdp(draft: keys.Draft, setting: Setting) -> bool:
    """Keys that only FSDP reads."""
    if draft.get("distributed_type") != "FSDP":
        where = "in the script (model.gradient_checkpointing_enable(), or torch.utils.checkpoint)"
        if setting.name == "cpu-offload":
            where = "with distributed_type FSDP or DEEPSPEED"
        draft.refuse(setting.name, f"accelerate does it only under FSDP; else {where}")
        return True
    if "activations" in (setting.options.get("what") or ()) and draft.get("fsdp_config.fsdp_version") not in (2, "2"):
        draft.refuse(setting.name, "accelerate offloads activations only under FSDP2 (fsdp_version 2)")
        return True
    return False
