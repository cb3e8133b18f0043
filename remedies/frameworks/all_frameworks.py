"""Every framework whose config can be written, by name. A new one: its file, its table, one line here, its test."""

from ...errors import OomdocError
from . import deepspeed, hf, plain_torch
from .interface import Framework

FRAMEWORKS: dict[str, Framework] = {
    "torch": plain_torch,
    "hf": hf,
    "deepspeed": deepspeed,
}


def detect(text: str, name: str) -> Framework:
    """The framework that `text` is a config of. Raises OomdocError when none or several claim it."""
    found = [framework for framework in FRAMEWORKS.values() if framework.recognises(text)]
    if len(found) == 1:
        return found[0]
    which = f"could be {' or '.join(each.NAME for each in found)}" if found else "is no config that oomdoc knows"
    raise OomdocError(f"{name} {which}: say --framework {' | '.join(FRAMEWORKS)}.")
