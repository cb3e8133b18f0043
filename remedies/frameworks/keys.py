"""The tables of configs/frameworks: remedy -> keys, for the frameworks whose file is a mapping of keys."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ...errors import OomdocError
from ..interface import NotApplicable, Setting
from .editing import get, parse, set_value
from .interface import Patch, Target

_FOLDER = Path(__file__).resolve().parent.parent.parent / "configs" / "frameworks"


@lru_cache
def table(name: str) -> Mapping[str, Any]:
    """configs/frameworks/NAME.yaml."""
    content = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return dict(content)


def recognises(name: str, text: str) -> bool:
    """At least two of the framework's own keys are at the top level."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return False
    return isinstance(content, dict) and len(set(content) & set(table(name)["recognised_by"])) >= 2


def patch(name: str, text: str, settings: Sequence[Setting], target: Target) -> Patch:
    """`text` with the keys of each setting, then with the batch cut so that the effective batch stays."""
    keys = table(name)
    content = parse(text, keys["title"])
    foreign = content.get("schema") == "oomdoc.config/1"
    if content and (foreign or not set(content) & set(keys["recognised_by"])):
        raise OomdocError(f"this is no {keys['title']}: it has none of its keys. Nothing was changed.")
    new, notes, unsupported = text, [], []
    for setting in settings:
        for variant in variants(setting):
            reason = _first(keys.get("unsupported"), variant)
            if reason is not None and variant not in (keys.get("set") or {}):
                unsupported.append(NotApplicable(setting.name, str(reason)))
                continue
            note = _first(keys.get("notes"), variant)
            notes += [str(note)] if note is not None else []
            new = _with(new, keys, variant)
        new = _with_options(new, keys, setting)
    for setting in settings:
        if setting.name == "gradient-accumulation":
            new = _cut_batch(new, keys, int(setting.options.get("micro_batches", 2)), target.batch_size)
        elif setting.name == "smaller-batch":
            new = set_value(new, (keys["batch"]["key"],), int(setting.options["batch_size"]))
    return Patch(framework=name, before=text, text=new, notes=tuple(notes), unsupported=tuple(unsupported))


def variants(setting: Setting) -> Iterator[str]:
    """The table's names for a setting: `name/option` where an option decides the keys."""
    if setting.name == "mixed-precision":
        yield f"{setting.name}/{setting.options.get('dtype', 'bfloat16')}"
    elif setting.name == "cpu-offload":
        for what in setting.options.get("what") or ("optimizer_state",):
            yield f"{setting.name}/{what}"
    else:
        yield setting.name


def _first(section: Mapping[str, Any] | None, variant: str) -> Any:
    section = section or {}
    return section.get(variant, section.get(variant.partition("/")[0]))


def _with(text: str, keys: Mapping[str, Any], variant: str) -> str:
    content = parse(text, keys["title"])
    for path, value in _paths((keys.get("unset") or {}).get(variant) or {}):
        if get(content, path) not in (None, value, "auto"):
            text = set_value(text, path, value)
    for path, value in _paths((keys.get("at_least") or {}).get(variant) or {}):
        present = get(content, path)
        if not isinstance(present, int) or present < value:
            text = set_value(text, path, value)
    for path, value in _paths((keys.get("set") or {}).get(variant) or {}):
        if get(content, path) != value:
            text = set_value(text, path, value)
    return text


def _with_options(text: str, keys: Mapping[str, Any], setting: Setting) -> str:
    """Keys whose value is the setting's own option, or depends on it."""
    for option, cases in ((keys.get("options") or {}).get(setting.name) or {}).items():
        if option not in setting.options:
            continue
        value = setting.options[option]
        for path, wanted in _paths(cases.get(value, {}) if isinstance(value, bool) else cases):
            wanted = list(value) if wanted == "<value>" else wanted
            if get(parse(text, keys["title"]), path) != wanted:
                text = set_value(text, path, wanted)
    return text


def _paths(section: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _paths(value, (*before, key))
        else:
            yield (*before, key), value


def _cut_batch(text: str, keys: Mapping[str, Any], micro_batches: int, planned: int | None) -> str:
    """Divide the batch per GPU and multiply the accumulation: the effective batch is the same.

    `planned` is the batch that the plan was made for: a file that has its micro-batch already stays as it is.
    """
    content = parse(text, keys["title"])
    batch_key, accumulation_key = keys["batch"]["key"], keys["accumulation"]["key"]
    batch = content.get(batch_key, keys["batch"]["default"])
    accumulation = content.get(accumulation_key, keys["accumulation"]["default"])
    for key, value in ((batch_key, batch), (accumulation_key, accumulation)):
        if not isinstance(value, int) or isinstance(value, bool):
            where = "is not in the file" if value is None else f"is {value!r}"
            raise OomdocError(f"{key} {where}: give it as a number, so that the effective batch can be kept.")
    if planned is not None and batch * micro_batches == planned and accumulation % micro_batches == 0:
        return text
    if batch % micro_batches:
        raise OomdocError(
            f"{batch_key} {batch} cannot be cut into {micro_batches} equal micro-batches: "
            f"choose a divisor of {batch}, or change the batch first."
        )
    text = set_value(text, (batch_key,), batch // micro_batches)
    return set_value(text, (accumulation_key,), accumulation * micro_batches)
