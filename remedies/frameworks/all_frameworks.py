"""Every framework whose config can be written, by name. A new one: its file, its table, one line here, its test."""

from ...errors import OomdocError
from . import accelerate, axolotl, deepspeed, hf, lightning, plain_torch, torchtitan, torchtune
from .editing import TOML, YAML, parse
from .interface import Framework

FRAMEWORKS: dict[str, Framework] = {
    "torch": plain_torch,
    "hf": hf,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "lightning": lightning,
    "torchtitan": torchtitan,
    "torchtune": torchtune,
    "axolotl": axolotl,
}


def detect(text: str, name: str) -> Framework:
    """The framework that `text` is a config of. Raises OomdocError when none or several claim it.

    And UnreadableInputError where it is broken, so that nobody could.
    """
    found = [framework for framework in FRAMEWORKS.values() if framework.recognises(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        parse(text, f"config {name}", TOML if name.endswith(".toml") else YAML, extras=True)
    which = f"could be {' or '.join(each.NAME for each in found)}" if found else "is no config that oomdoc knows"
    raise OomdocError(f"{name} {which}: say --framework {' | '.join(FRAMEWORKS)}.")
