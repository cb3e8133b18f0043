"""What one line of a log says about memory that ran out: pure text in, frozen records out.

Here are the sentences of PyTorch's allocators, whose clauses differ by version and device; `oom_forms` has the fixed
forms of everything else. Sizes are printed with two decimals: a number read from "23.65 GiB" is right to half of its
last digit (`rounding`).
"""

import re
from dataclasses import dataclass

from .oom_forms import FORMS, SIZE, Form, Kind

UNITS = {"bytes": 1, "byte": 1, "B": 1} | {
    f"{prefix}{infix}B": 1 << shift
    for prefix, shift in (("K", 10), ("M", 20), ("G", 30), ("T", 40))
    for infix in ("", "i")  # MPS and memory_summary print GB and mean 1024
}


OUT_OF_MEMORY = frozenset({Kind.DEVICE, Kind.LIBRARY, Kind.SERVER, Kind.HOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The numbers of one message, in bytes; None where it does not carry them."""

    format: str  # F1 to F32
    kind: Kind
    backend: str  # CUDA, HIP, XPU, NPU, MPS, CPU, NCCL, cuBLAS, ...
    text: str
    rank: int | None = None  # from the line's prefix
    local_rank: int | None = None
    device: int | None = None  # the index that the process sees
    tried_bytes: int | None = None  # asked of the driver: the segment, not the tensor
    total_bytes: int | None = None
    free_bytes: int | None = None  # on the whole card
    process_bytes: int | None = None  # this process, with context and NCCL
    allocated_bytes: int | None = None
    cached_bytes: int | None = None  # held by the allocator and not allocated
    reserved_bytes: int | None = None  # allocated + cached
    allowed_bytes: int | None = None  # a limit below the card's size
    private_pool_bytes: int | None = None  # part of the allocated
    active_bytes: int | None = None
    other_bytes: int | None = None  # MPS: made by others than the allocator
    processes: tuple[tuple[int, int], ...] = ()  # (pid, bytes) as NVML names them; may hold the own one


def rounding(count: int | None) -> int:
    """Bytes that a printed size can be off: half of the second decimal of its unit."""
    unit = next((1 << shift for shift in (30, 20, 10) if (count or 0) >= 1 << shift), 0)
    return -(-unit * 5 // 1000)


def to_bytes(text: str) -> int:
    """`12.50 MiB`, `0 bytes`, `3.34GiB`."""
    match = re.fullmatch(r"([\d.]+) ?([A-Za-z]+)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return round(float(match[1]) * UNITS[match[2]])


def _one(*patterns: str) -> "re.Pattern[str]":
    return re.compile("|".join(pattern.replace("SIZE", f"({SIZE})") for pattern in patterns))


_FIELDS = {
    "tried_bytes": _one(r"[Tt]ried to allocate SIZE"),
    "total_bytes": _one(r"SIZE total capacity", r"total capaci?ty of SIZE"),
    "free_bytes": _one(r"; SIZE free", r"of which SIZE is free"),
    "process_bytes": _one(r"this process has SIZE memory in use"),
    "allocated_bytes": _one(r"SIZE already allocated", r"SIZE is allocated by PyTorch", r"MPS allocated: SIZE"),
    "cached_bytes": _one(r"; SIZE cached", r"SIZE is reserved by PyTorch but unallocated"),
    "reserved_bytes": _one(r"SIZE reserved in total"),
    "allowed_bytes": _one(r"SIZE allowed;", r"max allowed: SIZE"),
    "private_pool_bytes": _one(r"with SIZE allocated in private pools"),
    "active_bytes": _one(r"SIZE current active"),
    "other_bytes": _one(r"other allocations: SIZE"),
}
_DEVICE = re.compile(r"\((?:GPU|NPU) (\d+);|GPU (\d+) has a total")
_PROCESS = re.compile(rf"Process (\d+) has ({SIZE}) memory in use")
_TORCH = re.compile(r"\b(CUDA|HIP|XPU|NPU|MPS) (?:backend )?out of memory\b(?=[. (])")
_OWN_LINE = re.compile(r"out of memory|Traceback|^\w+:")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_RANK = (
    re.compile(r"\[rank ?(\d+)\]", re.IGNORECASE),
    re.compile(r"\b(?:global_)?rank[ =:]{1,2}(\d+)", re.IGNORECASE),
    re.compile(r"^\s*\[?(\d+)\]?:\s"),  # srun --label, mpirun, "[0]:"
    re.compile(r": task (\d+):"),
)
_LOCAL_RANK = re.compile(r"local_rank[ =:]{1,2}(\d+)|^\[[\w-]*default(\d+)\]:")


def clean(line: str) -> str:
    """Without colours and HTML escapes."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "&" in line:
        line = line.replace("&gt;", ">").replace("&#39;", "'").replace("&quot;", '"')
    return line.lstrip().rstrip("\r\n")


def parse(line: str, after: str = "") -> tuple[Message, ...]:
    """The messages of one line. `after` = the lines behind it: a console may have broken a message into several."""
    line = clean(line)
    found = list(_torch(line, after))
    if found:
        return tuple(found)
    for form in FORMS:
        match = form.pattern.search(line)
        if match is not None:
            return (_other(form, match, line, after),)
    return ()


def _torch(line: str, after: str) -> "list[Message]":
    starts = list(_TORCH.finditer(line))
    found = []
    for number, start in enumerate(starts):
        last = number + 1 == len(starts)
        text = line[start.start() :] if last else line[start.start() : starts[number + 1].start()]
        fields = _fields(text)
        if last and "allocated_bytes" not in fields:
            joined = _joined(text, after)
            if len(_fields(joined)) > len(fields):
                text, fields = joined, _fields(joined)
        if "tried_bytes" not in fields and not line[: start.start()].endswith("Error: "):
            continue  # somebody speaks about it
        device = _DEVICE.search(text)
        found.append(
            Message(
                format=_format_of(start[1], text, line[: start.start()]),
                kind=Kind.WARNING if "Failed to clone()" in line[: start.start()] else Kind.DEVICE,
                backend=start[1],
                text=text[:600],
                device=int(device[1] or device[2]) if device else None,
                processes=tuple((int(pid), to_bytes(held)) for pid, held in _PROCESS.findall(text)),
                **_who(line[: start.start()]),
                **fields,
            )
        )
    return found


def _fields(text: str) -> dict[str, int]:
    found = {}
    for name, pattern in _FIELDS.items():
        match = pattern.search(text)
        if match is not None:
            found[name] = to_bytes(next(group for group in match.groups() if group))
    return found


def _joined(text: str, after: str) -> str:
    """With the lines that a console of fixed width cut off; stops at whatever starts a line of its own."""
    for each in after.splitlines():
        if not each.strip() or each.startswith(("  ", "\t", "[")) or _rank(each) is not None or _OWN_LINE.search(each):
            break
        text += each
    return text


def _format_of(backend: str, text: str, before: str) -> str:
    if backend != "CUDA":
        sentence = "has a total capa" in text
        if backend == "HIP" and re.search(rf"{SIZE} allowed;", text):
            return "F11"
        return {"HIP": "F14", "XPU": "F16" if sentence else "F15", "MPS": "F17", "NPU": "F18"}[backend]
    if "has a total capa" not in text:
        if re.search(rf"{SIZE} cached", text):
            return "F2"
        if "allowed;" in text:
            return "F5b"
        if "OutOfMemoryError" in before:
            return "F5"
        return "F4" if "max_split_size_mb" in text else "F3"
    if re.search(rf"{SIZE} allowed;", text):
        return "F11"
    if "allocated in private pools" in text:
        return "F10"
    if len(_PROCESS.findall(text)) > 1:
        return "F9"
    if "capacty" in text:
        return "F6"
    return "F8" if "torch.OutOfMemoryError" in before else "F7"


def _rank(before: str) -> int | None:
    for pattern in _RANK:
        match = pattern.search(before)
        if match is not None and "local_rank" not in before[max(0, match.start() - 6) : match.end()]:
            return int(match[1])
    return None


def _who(before: str) -> "dict[str, int | None]":
    local = _LOCAL_RANK.search(before)
    return {"rank": _rank(before), "local_rank": int(local[1] or local[2]) if local else None}  # fmt: skip


_TABLE_SIZE = re.compile(r"\|\s*(Allocated|GPU reserved) memory\s*\|\s*(\d+ +[KMGT]?i?B)\b")


def _other(form: Form, match: "re.Match[str]", line: str, after: str) -> Message:
    groups = {name: text for name, text in match.groupdict().items() if text is not None}
    fields: dict[str, int | None] = dict(_who(line[: match.end()]))
    for name, text in groups.items():
        if name in ("device", "local_rank"):
            fields[name] = int(text)
        elif name.endswith("_bytes"):
            fields[name] = to_bytes(text)
    if "plain" in groups:
        fields["tried_bytes"] = int(groups["plain"])
    if "free_gib" in groups:
        fields["free_bytes"] = to_bytes(f"{groups['free_gib']} GiB")
    if form.kind is Kind.SUMMARY:
        fields |= _table(after)
    kind = Kind.SHARED if groups.get("signal") == "7" else form.kind
    backend = line[match.start() :].split(" ", 1)[0] if form.format == "F12" and " error" in match[0] else form.backend
    return Message(format=form.format, kind=kind, backend=backend, text=line[match.start() :][:600], **fields)  # type: ignore[arg-type]


def _table(after: str) -> dict[str, int]:
    """Current usage of the table that torch.cuda.memory_summary() draws."""
    found: dict[str, int] = {}
    for each in after.splitlines():
        match = _TABLE_SIZE.search(each)
        if match is not None:
            name = "allocated_bytes" if match[1] == "Allocated" else "reserved_bytes"
            found.setdefault(name, to_bytes(re.sub(" +", " ", match[2])))
    return found
