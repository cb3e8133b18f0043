"""The tables of configs/frameworks: remedy -> keys, for the frameworks whose file is a mapping of keys.

A framework whose keys depend on what else is in the file gives handlers for those remedies; the table does the rest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ...errors import OomdocError
from ..interface import NotApplicable, Setting
from . import versions
from .editing import YAML, get, parse, set_value
from .interface import Patch, Target

_FOLDER = Path(__file__).resolve().parent.parent.parent / "configs" / "frameworks"


@lru_cache
def table(name: str) -> Mapping[str, Any]:
    """configs/frameworks/NAME.yaml."""
    content = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return dict(content)


class Draft:
    """A config on its way to a patch: its text so far, and what is to be said about it."""

    def __init__(self, name: str, text: str, target: Target) -> None:
        self.table = table(name)
        self.title: str = self.table["title"]
        self.text = text
        self.target = target
        self.version = versions.of(self.table, target.framework_version)
        self.notes: list[str] = []
        self.refused: list[NotApplicable] = []
        self._syntax: str = self.table.get("syntax", YAML)

    @property
    def content(self) -> dict[str, Any]:
        return parse(self.text, self.title, self._syntax, extras=bool(self.table.get("comments_in_json")))

    def get(self, dotted: str) -> Any:
        return get(self.content, tuple(dotted.split(".")))

    def set(self, dotted: str, value: Any) -> None:
        path = tuple(dotted.split("."))
        present = self.get(dotted)
        if present == "auto" and value is True:
            self.note(f"{dotted} is auto, and stays: {self.table.get('auto', 'the framework decides it')}")
        elif present != value or type(present) is not type(value):
            self.text = set_value(self.text, path, value, self._syntax)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, name: str, reason: str) -> None:
        self.refused.append(NotApplicable(name, reason))


Handler = Callable[[Draft, Setting], bool]  # False: the table does it


def recognises(name: str, text: str) -> bool:
    """At least two of the framework's own keys are at the top level, and none that is another's alone."""
    keys = table(name)
    try:
        content = parse(text, keys["title"], keys.get("syntax", YAML), extras=True)
    except (OomdocError, yaml.YAMLError, ValueError, RecursionError):
        return False
    own, others = set(keys["recognised_by"]), set(keys.get("never_with") or ())
    return len(set(content) & own) >= 2 and not set(content) & others


def patch(
    name: str, text: str, settings: Sequence[Setting], target: Target, own: Mapping[str, Handler] | None = None
) -> Patch:
    """`text` with the keys of each setting, then with the batch cut so that the effective batch stays."""
    draft = Draft(name, text, target)
    content, keys = draft.content, draft.table
    foreign = content.get("schema") == "oomdoc.config/1"
    if content and (foreign or not set(content) & set(keys["recognised_by"])):
        raise OomdocError(f"this is no {draft.title}: it has none of its keys. Nothing was changed.")
    handlers = {"gradient-accumulation": cut_batch, "smaller-batch": smaller_batch, **(own or {})}
    # the batch comes last: what can be refused for its sake is not half written then
    for setting in sorted(settings, key=lambda each: each.name in ("gradient-accumulation", "smaller-batch")):
        handler = handlers.get(setting.name)
        if handler is None or not handler(draft, setting):
            _by_table(draft, setting)
    return Patch(
        framework=name, before=text, text=draft.text, notes=tuple(draft.notes), unsupported=tuple(draft.refused)
    )


def variants(setting: Setting) -> Iterator[str]:
    """The table's names for a setting: `name/option` where an option decides the keys."""
    if setting.name == "mixed-precision":
        yield f"{setting.name}/{setting.options.get('dtype', 'bfloat16')}"
    elif setting.name == "cpu-offload":
        for what in setting.options.get("what") or ("optimizer_state",):
            yield f"{setting.name}/{what}"
    elif setting.name == "fused-optimizer" and not setting.options.get("fused", True):
        yield f"{setting.name}/foreach"
    else:
        yield setting.name


def _by_table(draft: Draft, setting: Setting) -> None:
    for variant in variants(setting):
        write_variant(draft, setting, variant)


def write_variant(draft: Draft, setting: Setting, variant: str) -> None:
    """The keys that the table has for one variant of a setting, or the reason why it has none."""
    keys = draft.table
    reason = _first(keys.get("unsupported"), variant)
    known = variant in (keys.get("set") or {}) or setting.name in (keys.get("options") or {})
    if reason is not None and variant not in (keys.get("set") or {}):
        draft.refuse(setting.name, str(reason))
        return
    if not known:
        draft.refuse(setting.name, f"the {draft.title} has no key for it that oomdoc knows")
        return
    needed = versions.lacks(draft.version, _first(keys.get("needs"), variant))
    if needed is not None:
        draft.refuse(setting.name, f"its keys need {keys['package']} {needed} or newer, and {draft.version} is used")
        return
    note = _first(keys.get("notes"), variant)
    if note is not None:
        draft.note(str(note))
    _set_keys(draft, variant)
    _set_options(draft, setting)


def _first(section: Mapping[str, Any] | None, variant: str) -> Any:
    section = section or {}
    return section.get(variant, section.get(variant.partition("/")[0]))


def _set_keys(draft: Draft, variant: str) -> None:
    keys = draft.table
    for path, value in _paths((keys.get("unset") or {}).get(variant) or {}):
        if draft.get(path) not in (None, value, "auto"):
            draft.set(path, value)
    for path, value in _paths((keys.get("at_least") or {}).get(variant) or {}):
        present = draft.get(path)
        if not isinstance(present, int) or present < value:
            draft.set(path, value)
    for path, value in _paths((keys.get("set") or {}).get(variant) or {}):
        draft.set(path, value)


def _set_options(draft: Draft, setting: Setting) -> None:
    """Keys whose value is the setting's own option, or depends on it."""
    for option, cases in ((draft.table.get("options") or {}).get(setting.name) or {}).items():
        if option not in setting.options:
            continue
        value = setting.options[option]
        for path, wanted in _paths(cases.get(value, {}) if isinstance(value, bool) else cases):
            forms = {"<value>": value, "<list>": value, "<joined>": value}
            if wanted in forms:
                wanted = ",".join(value) if wanted == "<joined>" else list(value) if wanted == "<list>" else value
            draft.set(path, wanted)


def _paths(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


# --- the batch ---


def batch_key(draft: Draft) -> str:
    """The dotted key of the batch per GPU: the first of the table's that the file has, else the first."""
    names: list[str] = draft.table["batch"]["keys"]
    return next((name for name in names if draft.get(name) is not None), names[0])


def cut_batch(draft: Draft, setting: Setting) -> bool:
    """Divide the batch per GPU and multiply the accumulation: the effective batch is the same."""
    keys = draft.table
    if "batch" not in keys:
        return False  # the table says why not
    micro_batches = int(setting.options.get("micro_batches", 2))
    key, accumulation_key = batch_key(draft), keys["accumulation"]["key"]
    batch = whole(draft, key, keys["batch"]["default"])
    accumulation = whole(draft, accumulation_key, keys["accumulation"]["default"])
    if already_cut(draft, batch, accumulation, micro_batches, accumulation_key):
        return True
    draft.set(key, divided(draft, key, batch, micro_batches))
    draft.set(accumulation_key, accumulation * micro_batches)
    return True


def whole(draft: Draft, key: str, default: int | None) -> int:
    """The whole number at a key, 1 or more. Raises OomdocError for anything else."""
    value = draft.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        where = "is not in the file" if value is None else f"is {value!r}"
        raise OomdocError(f"{key} {where}: give it as a number from 1 on, so that the effective batch can be kept.")
    return value


def already_cut(draft: Draft, batch: int, accumulation: int, micro_batches: int, accumulation_key: str) -> bool:
    """Whether the file has its micro-batch already: by the batch that the plan was made for, where that is known."""
    planned = draft.target.batch_size
    if planned is not None:
        if batch * micro_batches == planned and accumulation % micro_batches == 0:
            return True
        if batch != planned:
            draft.note(f"the plan was made for {planned} samples per GPU, and the file has {batch}")
        return False
    if accumulation > 1 and accumulation % micro_batches == 0:
        draft.note(
            f"{accumulation_key} is {accumulation} already and stays, as the plan does not say for which batch it was "
            "made (`for: {batch_size: N}`)"
        )
        return True
    return False


def divided(draft: Draft, key: str, batch: int, micro_batches: int) -> int:
    if batch % micro_batches:
        raise OomdocError(
            f"{key} {batch} cannot be cut into {micro_batches} equal micro-batches: "
            f"choose a divisor of {batch}, or change the batch first."
        )
    return batch // micro_batches


def smaller_batch(draft: Draft, setting: Setting) -> bool:
    if "batch" not in draft.table:
        return False
    key = batch_key(draft)
    if "batch_size" in setting.options:
        draft.set(key, int(setting.options["batch_size"]))
    else:
        draft.refuse(setting.name, f"the recording does not say the batch: divide {key} by hand")
    return True
