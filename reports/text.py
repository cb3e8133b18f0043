"""Numbers and places as people read them; shared by the renderers that write prose."""

from collections.abc import Mapping

from ..diagnosers.call_sites import module_label
from ..diagnosers.interface import CallSite, Category, DeviceProfile, Location
from ..diagnosers.source import short_path as short_path
from ..diagnosers.text import size as size  # one way to write bytes, for every renderer
from ..remedies.interface import Band, ByteBand, Candidate

# A file or function name comes from a stranger's snapshot: it must not steer the terminal (escape sequences) or turn
# the line around (bidirectional controls).
CONTROLS = dict.fromkeys([*range(32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)])
del CONTROLS[ord("\n")]

CATEGORY_TITLES: dict[str, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "activation": "activations",
    "input": "inputs",
    "temporary": "temporaries",
    "workspace": "library workspaces",
    "communication": "communication",
    "autocast_cache": "autocast cache",
    "kv_cache": "KV cache",
    "unknown": "unknown",
}


def maybe_size(count: int | None, missing: str = "not known") -> str:
    return missing if count is None else size(count)


def percent(part: int, whole: int | None) -> str:
    """`63 %`, `0.4 %`; empty where there is no whole."""
    if not whole:
        return ""
    value = 100 * part / whole
    if 0 < value < 0.05:
        return "<0.1 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def band(value: ByteBand) -> str:
    """`21.30 GiB`, with the range behind it where the estimate is not sharp."""
    if size(value.low) == size(value.high):
        return size(value.expected)
    return f"{size(value.expected)} ({size(value.low)} to {size(value.high)})"


def factor(value: Band) -> str:
    """`x1.30`, with its range where that is wider than the rounding."""
    low, expected, high = (f"{each:.2f}" for each in (value.low, value.expected, value.high))
    return f"x{expected}" if low == high else f"x{expected} ({low} to {high})"


def category_title(category: Category | str) -> str:
    name = category.value if isinstance(category, Category) else category
    return CATEGORY_TITLES.get(name, name)


def tail(file: str) -> str:
    """The end of a long path, which is enough to recognise it in a table: `.../models/llama/model.py`."""
    short = short_path(file).replace("\\", "/")
    parts = short.split("/")
    return short if len(parts) <= 4 else "/".join(["...", *parts[-3:]])


def place(location: Location | None, *, brief: bool = False) -> str:
    """`train.py:88 in forward`; `brief` shortens a long path."""
    if location is None:
        return "no Python frame"
    file = tail(location.file) if brief else short_path(location.file)
    where = f"{file}:{location.line}" if location.line else file
    return f"{where} in {location.function}" if location.function else where


def site_place(site: CallSite) -> str:
    """Where a call site is, and in which module of the model."""
    where = place(site.location, brief=True)
    return f"{where} · {module_label(site.module)}" if site.module else where


def moment(step: int | None, phase: str | None) -> str:
    """`step 2, backward`; empty where neither is known. Between the phases the step alone says more than "other"."""
    parts = [f"step {step}" if step is not None else "", phase if phase and phase != "other" else ""]
    return ", ".join(part for part in parts if part)


def device_title(profile: DeviceProfile, world_size: int, device_count: int) -> str:
    """Names rank and device only where there is more than one."""
    parts = [f"rank {profile.rank}"] if world_size > 1 else []
    if device_count > 1 or profile.device:
        parts.append(f"device {profile.device}")
    return ", ".join(parts)


def change(candidate: Candidate) -> str:
    """`gradient-accumulation (micro_batches 4) + cpu-offload (what optimizer_state)`: rows differ by their options."""
    return " + ".join(_setting(setting.name, setting.options) for setting in candidate.estimate.settings)


def _setting(name: str, options: Mapping[str, object]) -> str:
    told = ", ".join(f"{key} {_option(value)}" for key, value in options.items())
    return f"{name} ({told})" if told else name


def _option(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(each) for each in value) if isinstance(value, list | tuple) else str(value)
