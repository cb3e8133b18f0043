"""Hugging Face TrainingArguments as YAML or JSON; its keys are in configs/frameworks/hf.yaml."""

from collections.abc import Sequence

from ..interface import Setting
from . import keys
from .interface import Patch, Target

NAME = "hf"
TITLE: str = keys.table(NAME)["title"]
VERSION: str = keys.table(NAME)["version"]


def recognises(text: str) -> bool:
    return keys.recognises(NAME, text)


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    return keys.patch(NAME, text, settings, target)
