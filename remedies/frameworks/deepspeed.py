"""A DeepSpeed JSON config; its keys are in configs/frameworks/deepspeed.yaml."""

from collections.abc import Sequence

from ..interface import Setting
from . import keys
from .interface import Patch, Target

NAME = "deepspeed"
TITLE: str = keys.table(NAME)["title"]
VERSION: str = keys.table(NAME)["tried"]
NEW_FILE: str | None = "ds_config.json"


def recognises(text: str) -> bool:
    return keys.recognises(NAME, text)


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    return keys.patch(NAME, text or "{}\n", settings, target)
