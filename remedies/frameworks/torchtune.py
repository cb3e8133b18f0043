"""A torchtune recipe's YAML; its keys are in configs/frameworks/torchtune.yaml."""

from collections.abc import Mapping, Sequence

from ...errors import OomdocError
from ..interface import Setting
from . import keys
from .editing import parse
from .interface import Patch, Target

NAME = "torchtune"
TITLE: str = keys.table(NAME)["title"]
VERSION: str = keys.table(NAME)["tried"]
NEW_FILE: str | None = None
_COMPONENT = "_component_"
_CHUNKED = "torchtune.modules.loss.CEWithChunkedOutputLoss"


def recognises(text: str) -> bool:
    """A component by its import path is what no other framework's file has."""
    if not keys.recognises(NAME, text):
        return False
    try:
        content = parse(text, TITLE)
    except OomdocError:
        return False
    return any(isinstance(each, Mapping) and _COMPONENT in each for each in content.values())


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    own: dict[str, keys.Handler] = {
        "fused-optimizer": _fused,
        "chunked-loss": _chunked,
        "gradient-accumulation": _cut,
    }
    return keys.patch(NAME, text, settings, target, own)


def _fused(draft: keys.Draft, setting: Setting) -> bool:
    component = str(draft.get(f"optimizer.{_COMPONENT}") or "")
    fused = bool(setting.options.get("fused", True))
    if component.startswith("torch.optim."):
        draft.set(f"optimizer.{'fused' if fused else 'foreach'}", fused)
    else:
        draft.refuse(setting.name, f"the optimizer is {component or 'not in the file'}, not one of torch.optim")
    return True


def _chunked(draft: keys.Draft, setting: Setting) -> bool:
    component = str(draft.get(f"loss.{_COMPONENT}") or "")
    if component.endswith(".CrossEntropyLoss"):
        draft.set(f"loss.{_COMPONENT}", _CHUNKED)
    elif "Chunked" not in component:
        draft.refuse(setting.name, f"the loss is {component or 'not in the file'}, which has no chunked form here")
    return True


def _cut(draft: keys.Draft, setting: Setting) -> bool:
    if draft.get("optimizer_in_bwd") is True:
        draft.refuse(setting.name, "optimizer_in_bwd is on, which cannot accumulate gradients")
        return True
    return keys.cut_batch(draft, setting)
