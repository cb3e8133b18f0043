"""Plain PyTorch: oomdoc.yaml, which `oomdoc run --apply` puts in force without a change in the script."""

from collections.abc import Sequence

from ..config_file import OPTIONS, ConfigFile, dumps, parse
from ..interface import NotApplicable, Setting
from .interface import Patch, Target

NAME = "torch"
TITLE = "oomdoc.yaml for a plain PyTorch script"
VERSION = "oomdoc.config/1"


def recognises(text: str) -> bool:
    return "schema: oomdoc.config/" in text


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    """The whole file: it is oomdoc's own. A file that is there must be one (it is validated)."""
    if text.strip():
        parse(text)
    able = tuple(setting for setting in settings if setting.name in OPTIONS)
    config = ConfigFile(
        remedies=able,
        script=target.script,
        gpu=target.gpu,
        world_size=target.world_size,
        expected_peak_bytes=target.peak_bytes,
        expected_step_time_factor=target.step_time_factor,
    )
    by_hand = [setting.name for setting in settings if setting not in able]
    unable = [NotApplicable(name, f"a change in the script: `oomdoc explain {name}`") for name in by_hand]
    return Patch(framework=NAME, before=text, text=dumps(config), unsupported=tuple(unable))
