"""The limits and jobs of `oomdoc.toml`, or of `[tool.oomdoc]` in pyproject.toml.

    [gate]                      # defaults of every job
    gpu = "a100-80gb"           # a list runs the job once for each
    growth = "2%"
    baseline = "oomdoc-baseline.json"

    [gate.jobs.train]
    script = "train.py"
    args = ["--batch-size", "8"]
    nproc-per-node = [1, 8]
    budget = "60GiB"
    headroom = "10%"

Every key is checked: an unknown one is refused by name, so that a misspelt limit is never no limit.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ..configs.loader import parse_size
from ..errors import OomdocError
from .interface import Amount, Limits, Metric

OWN_FILE = "oomdoc.toml"
PYPROJECT = "pyproject.toml"
BASELINE = "oomdoc-baseline.json"

_TEXTS = (
    "script",
    "capacity",
    "alloc-conf",
    "cuda-context",
    "target-torch",
    "apply",
    "budget",
    "headroom",
    "growth",
    "metric",
)
_SEVERAL = ("gpu", "nproc-per-node", "nnodes")  # a list makes one job of each
_NUMBERS = ("rank", "steps")
_JOB_KEYS = {*_TEXTS, *_SEVERAL, *_NUMBERS, "args", "module", "snapshots"}
_GATE_KEYS = {*_JOB_KEYS - {"script", "args", "module", "snapshots"}, "baseline", "jobs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One job of the matrix: a script on one card and world size, or recordings that are there already."""

    name: str  # `train`, `train[a100-40gb,8x2]` where lists make several of it
    limits: Limits
    script: str | None = None
    args: tuple[str, ...] = ()
    module: bool = False
    snapshots: tuple[str, ...] = ()
    gpu: str | None = None
    capacity: str | None = None
    nproc_per_node: int = 1
    nnodes: int = 1
    rank: int | None = None  # None: rank 0 and those that differ from it
    steps: int | None = None
    alloc_conf: str | None = None
    cuda_context: str | None = None
    target_torch: str | None = None
    apply: str | None = None
    virtual: bool | None = True  # None: a real GPU where there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    path: Path
    baseline: Path
    jobs: tuple[JobSettings, ...]


def find(folder: Path) -> Path | None:
    """The file that configures the gate in this folder; None where neither does."""
    own = folder / OWN_FILE
    if own.is_file():
        return own
    project = folder / PYPROJECT
    return project if project.is_file() and _section(project) is not None else None


def read(path: Path) -> Settings:
    """Raises OomdocError, naming the key, for anything that cannot be meant."""
    section = _section(path)
    if section is None:
        raise OomdocError(f"{path} has no section [{'tool.oomdoc.' if path.name == PYPROJECT else ''}gate]")
    where = f"{path}: [gate]"
    _known(section, _GATE_KEYS, where)
    jobs = section.get("jobs", {})
    if not isinstance(jobs, dict) or not jobs:
        raise OomdocError(f'{where} names no job: add [gate.jobs.train] with script = "train.py"')
    defaults = {key: value for key, value in section.items() if key not in ("baseline", "jobs")}
    found = [job for name, content in jobs.items() for job in _jobs(name, content, defaults, str(path))]
    return Settings(path=path, baseline=path.parent / _text(section, "baseline", where, BASELINE), jobs=tuple(found))


def parse_amount(text: str | int) -> Amount:
    """`2%`, `512MiB`, `1073741824`. Raises OomdocError."""
    if isinstance(text, str) and text.strip().endswith("%"):
        try:
            share = float(text.strip()[:-1]) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < 1e6:
            raise OomdocError(f"{text!r} is no percentage: write 2% or 512MiB")
        return Amount(share=share)
    return Amount(bytes=parse_size(text))


def limits_of(budget: str | int | None, headroom: str | int | None, growth: str | int | None, metric: Metric) -> Limits:
    """Raises OomdocError for what is no size or percentage."""
    return Limits(
        metric=metric,
        budget_bytes=None if budget is None else parse_size(budget),
        headroom=None if headroom is None else parse_amount(headroom),
        growth=None if growth is None else parse_amount(growth),
    )


def _section(path: Path) -> dict[str, Any] | None:
    try:
        content: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OomdocError(f"cannot read {path}: {error}") from error
    for key in ("tool", "oomdoc") if path.name == PYPROJECT else ():
        content = content.get(key)
        if not isinstance(content, dict):
            return None
    _known(content, {"gate"}, f"{path}{': [tool.oomdoc]' if path.name == PYPROJECT else ''}")
    section = content.get("gate")
    if section is not None and not isinstance(section, dict):
        raise OomdocError(f"{path}: gate is a table: [gate]")
    return section


def _known(section: Mapping[str, Any], keys: set[str], where: str) -> None:
    for key in section:
        if key not in keys:
            import difflib

            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(keys))}"
            raise OomdocError(f"{where} has no key {key!r}; {hint}")


def _jobs(name: str, content: object, defaults: Mapping[str, Any], file: str) -> Iterator[JobSettings]:
    where = f"{file}: [gate.jobs.{name}]"
    if not isinstance(content, dict):
        raise OomdocError(f"{where} is a table")
    _known(content, _JOB_KEYS, where)
    merged = {**defaults, **content}
    if ("script" in content) == ("snapshots" in content):
        raise OomdocError(f"{where} needs either script or snapshots")
    axes = [_several(merged, key, where) for key in _SEVERAL]
    matrix = [len(axis) > 1 for axis in axes]
    for gpu, nproc, nnodes in product(*axes):
        told = [str(value) for value, varies in zip((gpu, nproc, nnodes), matrix, strict=True) if varies]
        yield JobSettings(
            name=f"{name}[{','.join(told)}]" if told else name,
            limits=_limits(merged, where),
            script=_text(merged, "script", where),
            args=_texts(merged, "args", where),
            module=_flag(merged, "module", where),
            snapshots=_texts(merged, "snapshots", where),
            gpu=gpu,
            capacity=_text(merged, "capacity", where),
            nproc_per_node=nproc or 1,
            nnodes=nnodes or 1,
            rank=_number(merged, "rank", where, least=0),
            steps=_number(merged, "steps", where, least=1),
            alloc_conf=_text(merged, "alloc-conf", where),
            cuda_context=_text(merged, "cuda-context", where),
            target_torch=_text(merged, "target-torch", where),
            apply=_text(merged, "apply", where),
        )


def _limits(section: Mapping[str, Any], where: str) -> Limits:
    given = {key: section.get(key) for key in ("budget", "headroom", "growth")}
    for key, value in given.items():
        if not isinstance(value, str | int | None) or isinstance(value, bool):
            raise OomdocError(f'{where}: {key} is a size or a percentage, such as "2GiB"')
    name = _text(section, "metric", where, Metric.ALLOCATED.value)
    if name not in {each.value for each in Metric}:
        raise OomdocError(f"{where}: metric is one of {', '.join(each.value for each in Metric)}, not {name!r}")
    try:
        return limits_of(given["budget"], given["headroom"], given["growth"], Metric(name))
    except OomdocError as error:
        raise OomdocError(f"{where}: {error}") from error


def _several(section: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    """The values of one axis of the matrix."""
    value = section.get(key)
    values = value if isinstance(value, list) else [value]
    named = key == "gpu"
    for each in values:
        count = isinstance(each, int) and not isinstance(each, bool) and each >= 1
        if each is not None and not (isinstance(each, str) if named else count):
            wanted = "a name or a list of names" if named else "a number from 1 on, or a list of them"
            raise OomdocError(f"{where}: {key} is {wanted}")
    if not values:
        raise OomdocError(f"{where}: {key} is an empty list")
    return values


def _text(section: Mapping[str, Any], key: str, where: str, default: Any = None) -> Any:
    value = section.get(key, default)
    if value is not default and not isinstance(value, str):
        raise OomdocError(f"{where}: {key} is a text")
    return value


def _texts(section: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = section.get(key, [])
    if not isinstance(value, list):
        raise OomdocError(f'{where}: {key} is a list, such as ["--batch-size", "8"]')
    return tuple(str(each) for each in value)


def _flag(section: Mapping[str, Any], key: str, where: str) -> bool:
    value = section.get(key, False)
    if not isinstance(value, bool):
        raise OomdocError(f"{where}: {key} is true or false")
    return value


def _number(section: Mapping[str, Any], key: str, where: str, *, least: int) -> int | None:
    value = section.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise OomdocError(f"{where}: {key} is a number from {least} on")
    return value
