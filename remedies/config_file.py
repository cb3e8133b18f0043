"""oomdoc.yaml: which remedies to apply, what they were planned for, what they should bring.

Read with PyYAML's safe loader and validated: an unknown key is refused by its name.
"""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import OomdocError, UnreadableInputError
from .interface import Setting

SCHEMA = "oomdoc.config/1"
MAX_BYTES = 1 << 20  # a config of this size is not one


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """`remedies` in the order of the file. `script`, `gpu` and `world_size` say what it was planned for."""

    remedies: tuple[Setting, ...]
    script: str | None = None
    gpu: str | None = None
    world_size: int | None = None
    batch_size: int | None = None  # per GPU, before gradient accumulation cuts it
    expected_peak_bytes: int | None = None
    expected_step_time_factor: float | None = None

    def mismatches(self, *, script: str | None, gpu: str | None, world_size: int | None) -> tuple[str, ...]:
        """What differs between the job that this was planned for and the one given; a reason to warn, not to stop."""
        pairs = (("script", self.script, script), ("gpu", self.gpu, gpu), ("world size", self.world_size, world_size))
        return tuple(
            f"planned for {name} {ours}, used with {theirs}"
            for name, ours, theirs in pairs
            if ours is not None and theirs is not None and ours != theirs
        )


def read(path: Path) -> ConfigFile:
    """Raises UnreadableInputError when the file is no YAML mapping, OomdocError when a key or value is not ours."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UnreadableInputError(f"{path} is larger than {MAX_BYTES} bytes: not an oomdoc.yaml.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInputError(f"cannot read {path}: {error}. `oomdoc plan` writes an oomdoc.yaml.") from error
    return parse(text, str(path))


def parse(text: str, name: str = "oomdoc.yaml") -> ConfigFile:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise UnreadableInputError(f"{name} is not valid YAML{where}: {getattr(error, 'problem', error)}") from error
    if not isinstance(content, Mapping):
        raise UnreadableInputError(f"{name} is not a mapping; it should begin with `schema: {SCHEMA}`.")
    _known(content, ("schema", "for", "remedies", "expected"), name)
    if content.get("schema") != SCHEMA:
        raise OomdocError(f"{name}: schema is {content.get('schema')!r}, this oomdoc reads {SCHEMA!r}.")
    target = _section(content, "for", ("script", "gpu", "world_size", "batch_size"), name)
    expected = _section(content, "expected", ("peak_bytes", "step_time_factor"), name)
    entries = content.get("remedies")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise OomdocError(f"{name}: remedies must be a list of {{name: ..., options}}; it is {entries!r}.")
    return ConfigFile(
        remedies=tuple(_setting(entry, f"{name}: remedies[{i}]") for i, entry in enumerate(entries)),
        script=_typed(target, "script", str, name),
        gpu=_typed(target, "gpu", str, name),
        world_size=_typed(target, "world_size", int, name),
        batch_size=_typed(target, "batch_size", int, name),
        expected_peak_bytes=_typed(expected, "peak_bytes", int, name),
        expected_step_time_factor=_typed(expected, "step_time_factor", float, name),
    )


def dumps(config: ConfigFile) -> str:
    """The text of the file; keys in the order of its documentation."""
    target = {
        "script": config.script,
        "gpu": config.gpu,
        "world_size": config.world_size,
        "batch_size": config.batch_size,
    }
    expected = {"peak_bytes": config.expected_peak_bytes, "step_time_factor": config.expected_step_time_factor}
    lines = [f"schema: {SCHEMA}"]
    for key, section in (("for", target), ("expected", expected)):
        filled = {k: v for k, v in section.items() if v is not None}
        if key == "expected":
            lines += ["remedies:" if config.remedies else "remedies: []"]
            lines += [f"  - {_flow({'name': s.name, **s.options})}" for s in config.remedies]
        if filled:
            lines.append(f"{key}: {_flow(filled)}")
    return "\n".join(lines) + "\n"


def write(config: ConfigFile, path: Path) -> None:
    """Atomic: the file is either the old one or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(dumps(config), encoding="utf-8")
    temporary.replace(path)


def _flow(value: Mapping[str, Any]) -> str:
    plain = {key: list(each) if isinstance(each, tuple) else each for key, each in value.items()}
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10_000).strip()


def _known(found: Mapping[Any, Any], allowed: Sequence[str], where: str) -> None:
    for key in found:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" It takes {', '.join(allowed)}."
            raise OomdocError(f"{where}: unknown key {key!r}.{hint}")


def _section(content: Mapping[str, Any], key: str, allowed: Sequence[str], name: str) -> Mapping[str, Any]:
    section = content.get(key) or {}
    if not isinstance(section, Mapping):
        raise OomdocError(f"{name}: {key} must be a mapping of {', '.join(allowed)}.")
    _known(section, allowed, f"{name}: {key}")
    return section


def _typed(section: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    value = section.get(key)
    wanted = (int, float) if kind is float else kind
    if value is None or (isinstance(value, wanted) and not isinstance(value, bool)):
        return value
    raise OomdocError(f"{name}: {key} must be a {kind.__name__}, it is {value!r}.")


def _setting(entry: Any, where: str) -> Setting:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise OomdocError(f"{where} must be a mapping with a name, such as {{name: mixed-precision, dtype: bfloat16}}.")
    name = entry["name"]
    if name not in OPTIONS:
        near = difflib.get_close_matches(name, OPTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(OPTIONS)}."
        raise OomdocError(f"{where}: no remedy is called {name!r}; {hint}")
    allowed = OPTIONS[name]
    options = {str(key): value for key, value in entry.items() if key != "name"}
    _known(options, tuple(allowed), f"{where} ({name})")
    for key, value in options.items():
        says = allowed[key](value)
        if says is not None:
            raise OomdocError(f"{where} ({name}): {key} {says}, it is {value!r}.")
    return Setting(name=name, options=options)


Check = Callable[[Any], str | None]


def _one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"must be {' or '.join(choices)}"


def _list_of_names(value: Any) -> str | None:
    fine = isinstance(value, list) and value and all(isinstance(each, str) for each in value)
    return None if fine else "must be a list of class names"


def _subset_of(*choices: str) -> Check:
    def check(value: Any) -> str | None:
        fine = isinstance(value, list) and value and all(each in choices for each in value)
        return None if fine else f"must be a list of {', '.join(choices)}"

    return check


def _at_least(least: int) -> Check:
    def check(value: Any) -> str | None:
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if fine else f"must be a whole number of at least {least}"

    return check


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


# The remedies that oomdoc.yaml can name, with their options; those that `remedies.runtime` applies.
OPTIONS: dict[str, dict[str, Check]] = {
    "mixed-precision": {"dtype": _one_of("bfloat16", "float16")},
    "activation-checkpointing": {"modules": _list_of_names, "every": _at_least(1)},
    "gradient-accumulation": {"micro_batches": _at_least(1)},
    "fsdp": {"wrap": _list_of_names, "reshard_after_forward": _boolean},
    "no-grad-evaluation": {},
    "cpu-offload": {"what": _subset_of("optimizer_state", "activations"), "min_bytes": _at_least(0)},
}
