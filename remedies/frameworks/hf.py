"""Hugging Face TrainingArguments as YAML or JSON; its keys are in configs/frameworks/hf.yaml."""

from collections.abc import Sequence

from ..interface import Setting
from . import keys
from .interface import Patch, Target

NAME = "hf"
TITLE: str = keys.table(NAME)["title"]
VERSION: str = keys.table(NAME)["tried"]
NEW_FILE: str | None = "training_args.yaml"


def recognises(text: str) -> bool:
    return keys.recognises(NAME, text)


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    # sharding first: it decides whose checkpointing it is
    ordered = sorted(settings, key=lambda each: each.name != "fsdp")
    return keys.patch(NAME, text, ordered, target, _OWN)


def _fused(draft: keys.Draft, setting: Setting) -> bool:
    """Only Adam has a fused choice; another optimizer stays what it is."""
    optimizer = draft.get("optim")
    if setting.options.get("fused", True) and optimizer not in (None, "adamw_torch", "adamw_torch_fused"):
        draft.refuse(setting.name, f"the optimizer is {optimizer}, which has no fused choice here")
        return True
    return False


def _checkpointing(draft: keys.Draft, setting: Setting) -> bool:
    """Under FSDP its own, as the Trainer asks for. A file that has the newer name of the key keeps to it."""
    if draft.get("fsdp") and not draft.get("gradient_checkpointing"):
        draft.set("fsdp_config.activation_checkpointing", True)
        return True
    if draft.get("activation_checkpointing") is None:
        return False
    draft.set("activation_checkpointing", True)
    draft.set("activation_checkpointing_kwargs.use_reentrant", False)
    return True


_OWN: dict[str, keys.Handler] = {"fused-optimizer": _fused, "activation-checkpointing": _checkpointing}
