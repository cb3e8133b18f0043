"""Plain PyTorch: oomdoc.yaml, which `oomdoc run --apply` puts in force without a change in the script."""

from collections.abc import Sequence
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from ..config_file import OPTIONS, ConfigFile, dumps, parse
from ..interface import NotApplicable, Setting
from .interface import Patch, Target

NAME = "torch"
TITLE = "oomdoc.yaml for a plain PyTorch script"
VERSION = "oomdoc.config/1"
NEW_FILE: str | None = "oomdoc.yaml"


def recognises(text: str) -> bool:
    return "schema: oomdoc.config/" in text


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    """The file is oomdoc's own, so it becomes the plan whole; lines that say the same already stay, comments too.

    A file that is there must be one: it is validated.
    """
    able = tuple(setting for setting in settings if setting.name in OPTIONS)
    config = ConfigFile(
        remedies=able,
        script=target.script,
        gpu=target.gpu,
        world_size=target.world_size,
        batch_size=target.batch_size,
        expected_peak_bytes=target.peak_bytes,
        expected_step_time_factor=target.step_time_factor,
    )
    new = dumps(config)
    if text.strip():
        parse(text)
        new = _merged(text, new)
        if parse(new) != config:  # a spelling that cannot be kept: the file is written again
            new = dumps(config)
    by_hand = [setting.name for setting in settings if setting not in able]
    unable = [NotApplicable(name, f"a change in the script: `oomdoc explain {name}`") for name in by_hand]
    return Patch(framework=NAME, before=text, text=new, unsupported=tuple(unable))


def _merged(old: str, new: str) -> str:
    """`old`, with each section that says something else in the words of `new`."""
    sections = _sections(old)
    wanted = _sections(new)
    out, at = [], 0
    for key, (start, end) in sections.items():
        out.append(old[at:start])
        at = end
        if key in wanted:
            theirs, ours = old[start:end], new[slice(*wanted[key])]
            out.append(theirs if _content(theirs) == _content(ours) else _with_kept_items(theirs, ours))
    for key, span in wanted.items():
        if key not in sections:
            out.append(old[at:])
            at = len(old)
            out.append(("" if "".join(out).endswith("\n") else "\n") + new[slice(*span)])
    return "".join([*out, old[at:]])


def _with_kept_items(old: str, new: str) -> str:
    """A list of remedies: an entry that stays keeps its line and the comment on it."""
    kept = {repr(_content(line)): line for line in old.splitlines(keepends=True) if line.lstrip().startswith("- ")}
    return "".join(kept.get(repr(_content(line)), line) for line in new.splitlines(keepends=True))


def _content(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _sections(text: str) -> dict[str, tuple[int, int]]:
    """Of each key of the mapping: from its first character to behind the line that it ends on."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, MappingNode) and not root.flow_style else []
    return {key.value: (key.start_mark.index, _behind(text, _last(value))) for key, value in pairs}


def _last(node: Node) -> int:
    while isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def _behind(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1
