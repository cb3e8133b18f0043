"""The allocator's settings: one frozen record, the size arithmetic that depends on it alone, and its text form.

Names, defaults, limits and the syntax follow PyTorch 2.13 (c10/core/AllocatorConfig.h, c10/cuda/CUDAAllocatorConfig.h),
which reads PYTORCH_CUDA_ALLOC_CONF and, where that is not set, PYTORCH_ALLOC_CONF. All sizes are bytes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..errors import OomdocError

MIB = 1 << 20
MIN_BLOCK = 512  # kMinBlockSize: every request is rounded up to a multiple
SMALL_SIZE = MIB  # kSmallSize: up to here a rounded request uses the small pool
SMALL_BUFFER = 2 * MIB  # kSmallBuffer: one small segment; the page of a small expandable segment
LARGE_BUFFER = 20 * MIB  # kLargeBuffer: default of large_segment_size_mb
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own
ROUND_LARGE = 2 * MIB  # kRoundLarge: such a segment is a multiple of this
ROUNDUP_INTERVALS = 16  # buckets of roundup_power2_divisions: 1 MiB, 2 MiB, ... 32 GiB
MAX_SIZE_T = (1 << 64) - 1
ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the first one that is set counts


class AllocConfError(OomdocError):
    """An allocator setting that PyTorch would refuse, or that oomdoc cannot simulate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """Allocator settings. The defaults are PyTorch's own.

    `max_split_size` None = unlimited. `roundup_divisions` has one power of two (0 or 1 = off) per bucket of request
    sizes 1 MiB, 2 MiB, ... 32 GiB. `memory_fraction` None = set_per_process_memory_fraction was never called.
    """

    max_split_size: int | None = None
    max_non_split_rounding: int = LARGE_BUFFER
    garbage_collection_threshold: float = 0.0
    roundup_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    expandable_segments: bool = False
    large_segment_size: int = LARGE_BUFFER
    memory_fraction: float | None = None

    def round_size(self, size: int) -> int:
        """Bytes of the block that a request of `size` bytes asks for (before any unsplit rest)."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        divisions = self.roundup_divisions[min(max(size.bit_length() - 21, 0), ROUNDUP_INTERVALS - 1)]
        if divisions > 1 and size > MIN_BLOCK * divisions:
            return _next_division(size, divisions)
        return (size + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK

    def segment_size(self, rounded: int) -> int:
        """Bytes that cudaMalloc is asked for when no cached block serves a rounded request."""
        if rounded <= SMALL_SIZE:
            return SMALL_BUFFER
        if rounded < MIN_LARGE_ALLOC:
            return self.large_segment_size
        return (rounded + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE

    def page_size(self, large: bool) -> int:
        """Bytes of one page of an expandable segment."""
        return self.large_segment_size if large else SMALL_BUFFER

    def as_text(self) -> str:
        """The PYTORCH_CUDA_ALLOC_CONF string with these settings; what is PyTorch's default is left out."""
        default, parts = AllocatorConfig(), []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        for key, size, usual in (
            ("max_split_size_mb", self.max_split_size, default.max_split_size),
            ("max_non_split_rounding_mb", self.max_non_split_rounding, default.max_non_split_rounding),
            ("large_segment_size_mb", self.large_segment_size, default.large_segment_size),
        ):
            if size is not None and size != usual:
                parts.append(f"{key}:{size // MIB}")
        if self.garbage_collection_threshold:
            parts.append(f"garbage_collection_threshold:{self.garbage_collection_threshold:g}")
        if self.memory_fraction is not None:
            parts.append(f"per_process_memory_fraction:{self.memory_fraction:g}")
        if max(self.roundup_divisions) > 1:
            first, *rest = self.roundup_divisions
            each = ",".join(f"{1 << bucket}:{value}" for bucket, value in enumerate(self.roundup_divisions))
            parts.append(
                f"roundup_power2_divisions:{first}" if {first} >= set(rest) else f"roundup_power2_divisions:[{each}]"
            )
        return ",".join(parts)


def _next_division(size: int, divisions: int) -> int:
    """`size` rounded up to the next of `divisions` equal steps between two powers of two."""
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor * 2
    return (size + step - 1) // step * step


def parse(text: str) -> AllocatorConfig:
    """The settings of a PYTORCH_CUDA_ALLOC_CONF string, e.g. `max_split_size_mb:128,garbage_collection_threshold:0.8`.

    Raises AllocConfError, naming the key, on whatever PyTorch refuses. Keys that do not change device memory (pinned
    host memory, locks) are checked and dropped. Separators are checked as PyTorch up to 2.12 does; 2.13 lets some
    malformed strings pass and ignores parts of them.
    """
    fields: dict[str, object] = {}
    tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", "".join(text.split()))
    while tokens:
        key = tokens.pop(0)
        if key not in _READERS:
            raise AllocConfError(
                f"allocator settings: unknown key {key!r}; PyTorch knows {', '.join(sorted(_READERS))}"
            )
        fields.update(_READERS[key](key, _value_tokens(key, tokens)))
        if tokens and tokens.pop(0) != ",":
            raise AllocConfError(f"allocator settings: expected ',' after the value of {key}")
    config = AllocatorConfig(**fields)  # type: ignore[arg-type]  # every reader returns fields of the record
    for key, size in (
        ("max_split_size_mb", config.max_split_size),
        ("max_non_split_rounding_mb", config.max_non_split_rounding),
    ):
        if key.replace("_mb", "") in fields and size is not None and size < config.large_segment_size:
            raise AllocConfError(f"{key} is too small: it must be at least {config.large_segment_size // MIB}")
    return config


def text_in(environment: Mapping[str, str]) -> str:
    """The settings, as text, that a process with this environment starts with; empty = PyTorch's own."""
    return next((environment[name] for name in ENVIRONMENT if name in environment), "")


def from_snapshot_settings(settings: Mapping[str, object]) -> AllocatorConfig:
    """The settings that a snapshot's `allocator_settings` shows; PyTorch's defaults for what it does not show.

    Explicit entries win over the recorded string, which may be older than a change made while the job ran. Raises
    AllocConfError where they are not what PyTorch writes.
    """
    text = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    try:
        config = parse(text) if isinstance(text, str) else AllocatorConfig()
    except AllocConfError:
        config = AllocatorConfig()
    split, threshold = settings.get("max_split_size"), settings.get("garbage_collection_threshold")
    if isinstance(split, int):
        config = replace(config, max_split_size=split if 0 < split < 1 << 62 else None)
    if isinstance(threshold, int | float):
        config = replace(config, garbage_collection_threshold=float(threshold))
    if isinstance(settings.get("expandable_segments"), bool):
        config = replace(config, expandable_segments=bool(settings["expandable_segments"]))
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and divisions:
        try:
            by_size = {int(str(size)): int(str(value)) for size, value in divisions.items()}
        except ValueError:
            raise AllocConfError("the recorded roundup_power2_divisions are not numbers") from None
        buckets = tuple(by_size.get(1 << bucket, 0) for bucket in range(ROUNDUP_INTERVALS))
        config = replace(config, roundup_divisions=buckets)
    return config


def _value_tokens(key: str, tokens: list[str]) -> list[str]:
    """Take ':' and a value, one token or a bracketed list without its brackets, from the front of `tokens`."""
    if not tokens or tokens.pop(0) != ":":
        raise AllocConfError(f"allocator settings: expected ':' and a value after {key}")
    if not tokens or tokens[0] in (",", ":", "]"):
        raise AllocConfError(f"allocator settings: {key} has no value")
    if tokens[0] != "[":
        return [tokens.pop(0)]
    if "]" not in tokens:
        raise AllocConfError(f"allocator settings: {key} has no closing ']'")
    end = tokens.index("]")
    value = ["[", *tokens[1:end]]
    del tokens[: end + 1]
    return value


def _single(key: str, value: list[str]) -> str:
    if value[0] == "[":
        raise AllocConfError(f"{key} takes one value, not a list")
    return value[0]


def _whole(key: str, text: str) -> int:
    """As C++ std::stoull: leading digits count, what follows is ignored, a minus sign wraps around."""
    match = re.match(r"[+-]?\d+", text)
    if match is None or abs(int(match[0])) > MAX_SIZE_T:
        raise AllocConfError(f"{key} takes a whole number, not {text!r}")
    return int(match[0]) & MAX_SIZE_T


def _megabytes(key: str, value: list[str]) -> int:
    return min(_whole(key, _single(key, value)), MAX_SIZE_T // MIB) * MIB


def _flag(key: str, value: list[str]) -> bool:
    text = _single(key, value)
    if text not in ("True", "False"):
        raise AllocConfError(f"{key} takes True or False, not {text!r}")
    return text == "True"


def _real(key: str, value: list[str]) -> float:
    text = _single(key, value)
    try:
        return float.fromhex(text) if text.lower().startswith("0x") else float(text)
    except ValueError:
        raise AllocConfError(f"{key} takes a number, not {text!r}") from None


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _read_split_size(key: str, value: list[str]) -> dict[str, object]:
    return {"max_split_size": _megabytes(key, value)}


def _read_non_split_rounding(key: str, value: list[str]) -> dict[str, object]:
    return {"max_non_split_rounding": _megabytes(key, value)}


def _read_large_segment(key: str, value: list[str]) -> dict[str, object]:
    size = _megabytes(key, value)
    if size <= MIN_LARGE_ALLOC:
        raise AllocConfError(f"{key} must be above {MIN_LARGE_ALLOC // MIB}")
    return {"large_segment_size": size}


def _read_threshold(key: str, value: list[str]) -> dict[str, object]:
    threshold = _real(key, value)
    if not 0.0 < threshold < 1.0:
        raise AllocConfError(f"{key} must lie between 0 and 1, both excluded; it is {threshold}")
    return {"garbage_collection_threshold": threshold}


def _read_fraction(key: str, value: list[str]) -> dict[str, object]:
    fraction = _real(key, value)
    if not 0.0 <= fraction <= 1.0:
        raise AllocConfError(f"{key} must lie between 0 and 1; it is {fraction}")
    return {"memory_fraction": fraction}


def _read_expandable(key: str, value: list[str]) -> dict[str, object]:
    return {"expandable_segments": _flag(key, value)}


def _read_divisions(key: str, value: list[str]) -> dict[str, object]:
    """One power of two for every size, or a list such as [256:1,512:2,>:8] of sizes in MiB."""
    if value[0] != "[":
        divisions = _whole(key, value[0])
        if not _is_power_of_two(divisions):
            raise AllocConfError(f"{key} must be a power of 2; it is {value[0]}")
        return {"roundup_divisions": (divisions,) * ROUNDUP_INTERVALS}
    buckets = [0] * ROUNDUP_INTERVALS
    last = 0
    entries = [entry for entry in "".join(value[1:]).split(",") if entry]
    for position, entry in enumerate(entries):
        size_text, _, divisions_text = entry.partition(":")
        divisions = _whole(key, divisions_text)
        if divisions != 0 and not _is_power_of_two(divisions):
            raise AllocConfError(f"{key}: {entry} must have a power of 2, or 0 for off, after the ':'")
        if size_text == ">":
            buckets[last + 1 :] = [divisions] * (ROUNDUP_INTERVALS - last - 1)
            continue
        size = _whole(key, size_text)
        if not _is_power_of_two(size):
            raise AllocConfError(f"{key}: {entry} must have a power of 2 (MiB) before the ':'")
        last = min(size.bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if position == 0:
            buckets[:last] = [divisions] * last
        buckets[last] = divisions
    return {"roundup_divisions": tuple(buckets)}


def _read_backend(key: str, value: list[str]) -> dict[str, object]:
    name = _single(key, value)
    if name == "cudaMallocAsync":
        raise AllocConfError(f"{key}:{name} is another allocator; oomdoc knows PyTorch's own (native) only")
    if name != "native":
        raise AllocConfError(f"{key} is native or cudaMallocAsync, not {name!r}")
    return {}


def _check_flag(key: str, value: list[str]) -> dict[str, object]:
    _flag(key, value)
    return {}


def _check_whole(key: str, value: list[str]) -> dict[str, object]:
    _whole(key, _single(key, value))
    return {}


def _check_positive(key: str, value: list[str]) -> dict[str, object]:
    if _whole(key, _single(key, value)) == 0:
        raise AllocConfError(f"{key} must be above 0")
    return {}


def _check_threads(key: str, value: list[str]) -> dict[str, object]:
    threads = _whole(key, _single(key, value))
    if not _is_power_of_two(threads) or threads > 128:
        raise AllocConfError(f"{key} must be a power of 2 up to 128; it is {threads}")
    return {}


_READERS: Mapping[str, Callable[[str, list[str]], dict[str, object]]] = {
    "backend": _read_backend,
    "expandable_segments": _read_expandable,
    "garbage_collection_threshold": _read_threshold,
    "graph_capture_record_stream_reuse": _check_flag,
    "large_segment_size_mb": _read_large_segment,
    "max_non_split_rounding_mb": _read_non_split_rounding,
    "max_split_size_mb": _read_split_size,
    "per_process_memory_fraction": _read_fraction,
    "pinned_free_catch_all": _check_flag,
    "pinned_max_cached_size_mb": _check_whole,
    "pinned_max_round_threshold_mb": _check_whole,
    "pinned_num_register_threads": _check_threads,
    "pinned_reserve_segment_size_mb": _check_positive,
    "pinned_use_background_threads": _check_flag,
    "pinned_use_cuda_host_register": _check_flag,
    "pinned_use_hip_host_register": _check_flag,
    "release_lock_on_cudamalloc": _check_flag,
    "release_lock_on_hipmalloc": _check_flag,
    "roundup_power2_divisions": _read_divisions,
    "throw_on_cudamalloc_oom": _check_flag,
}
