"""Typed, cached access to the data files beside this module."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from ..errors import OomdocError

HERE = Path(__file__).resolve().parent

# Threads that one streaming multiprocessor can hold, by compute capability: CUDA C++ programming guide, table
# "Technical specifications per compute capability".
THREADS_PER_SM = {
    (7, 0): 2048,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1536,
    (8, 9): 1536,
    (9, 0): 2048,
    (10, 0): 2048,
    (12, 0): 1536,
}

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_DECIMAL_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One card of gpus.yaml. `total_bytes` is what cudaMemGetInfo calls total."""

    name: str
    title: str  # what the driver calls it
    total_bytes: int
    total_source: str
    context_bytes: int  # held outside PyTorch's allocator by a process without NCCL
    context_is_estimate: bool
    context_source: str
    compute_capability: tuple[int, int]
    sm_count: int
    threads_per_sm: int
    flops: Mapping[str, float]  # dense FLOP/s: fp32, tf32, fp16, bf16, fp8; missing = no hardware path
    memory_bandwidth: float  # bytes/s
    nvlink_bandwidth: float | None  # bytes/s, both directions together
    pcie_generation: int
    spec_source: str


def parse_size(text: str | int) -> int:
    """Bytes of `24GiB`, `24 GB`, `81089 MiB`, `1073741824`; GiB is 1024**3, GB is 1000**3.

    Raises OomdocError for anything else.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.match(text)
    unit = match.group(2).upper() if match else ""
    factor = _UNITS.get(unit, _DECIMAL_UNITS.get(unit))
    if match is None or factor is None:
        raise OomdocError(f"{text!r} is not a size: write bytes or a number with a unit, such as 24GiB or 81089MiB")
    return round(float(match.group(1)) * factor)


def parse_capacity(text: str) -> int:
    """Bytes of a card: a size as `parse_size` takes it. Raises OomdocError for zero, on which nothing can run."""
    size = parse_size(text)
    if size <= 0:
        raise OomdocError(f"a card of {text} can hold nothing: write --capacity 24GiB")
    return size


@lru_cache(maxsize=1)
def gpus() -> Mapping[str, GpuSpec]:
    """Every card of gpus.yaml by its name, in the order of the file."""
    return MappingProxyType({name: _spec(name, entry) for name, entry in _raw_gpus().items()})


def gpu(name: str) -> GpuSpec:
    """The card called `name` (or one of its aliases; case, blanks and underscores do not matter).

    Raises OomdocError with near matches when there is none, and with the choices when there are several.
    """
    wanted = _normal(name)
    found = _aliases().get(wanted)
    if found is not None:
        return gpus()[found]
    family = [each for each in gpus() if each == wanted or each.startswith(f"{wanted}-")]
    if family:
        raise OomdocError(f"--gpu {name} is several cards: choose {_either(family)}")
    close = difflib.get_close_matches(wanted, _aliases(), n=4, cutoff=0.5)
    near = list(dict.fromkeys(_aliases()[each] for each in close))
    hint = f"did you mean {_either(near)}?" if near else f"known: {', '.join(gpus())}"
    raise OomdocError(f"no GPU called {name!r} in configs/gpus.yaml; {hint}")


@lru_cache(maxsize=1)
def thresholds() -> Mapping[str, Mapping[str, float]]:
    """The numbers that the causes compare with: cause code -> name -> value, from thresholds.yaml."""
    raw = _read("thresholds.yaml")
    return MappingProxyType({code: MappingProxyType(_numbers(section)) for code, section in raw.items()})


def _numbers(section: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value["value"] if isinstance(value, Mapping) else value)
        for key, value in section.items()
        if isinstance(value, Mapping | int | float)
    }


def _spec(name: str, entry: Mapping[str, Any]) -> GpuSpec:
    major, minor = entry["compute_capability"]
    nvlink = entry.get("nvlink_bandwidth")
    return GpuSpec(
        name=name,
        title=entry["title"],
        total_bytes=parse_size(entry["total"]["bytes"]),
        total_source=entry["total"]["source"],
        context_bytes=parse_size(entry["context"]["bytes"]),
        context_is_estimate=bool(entry["context"].get("estimate", False)),
        context_source=entry["context"]["source"],
        compute_capability=(major, minor),
        sm_count=entry["sm_count"],
        threads_per_sm=THREADS_PER_SM[(major, minor)],
        flops=MappingProxyType({dtype: float(value) for dtype, value in entry["flops"].items()}),
        memory_bandwidth=float(entry["memory_bandwidth"]),
        nvlink_bandwidth=None if nvlink is None else float(nvlink),
        pcie_generation=entry["pcie_generation"],
        spec_source=entry["spec"],
    )


@lru_cache(maxsize=1)
def _raw_gpus() -> Mapping[str, Any]:
    return _read("gpus.yaml")


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for name, entry in _raw_gpus().items():
        names[name] = name
        names[_normal(entry["title"])] = name
        names.update({_normal(alias): name for alias in entry.get("aliases", ())})
    return names


def _normal(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _read(file: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with (HERE / file).open("rb") as stream:
        content = yaml.load(stream, Loader=loader)  # both are safe loaders; the C one is ten times faster
    return dict(content)
