"""The committed baseline file: JSON in a fixed order, one line of text per line of code, so that git can merge it.

    {"schema": "oomdoc.baseline/1",
     "jobs": {"train": {"gpu": "a100-40gb", "torch": "2.13.0", "world_size": 1, "rank": 0, "device": 0,
       "requested_bytes": 1, "allocated_bytes": 1, "reserved_bytes": 1,
       "categories": {"activation": 1},
       "lines": [{"bytes": 1, "blocks": 1, "category": "activation", "file": "train.py", "function": "forward",
                  "code": "h = torch.tanh(h)", "module": "blocks.*.mlp"}]}}}

It holds nothing that differs between two runs of one commit. A line of code is kept by its text, with a number only
where its source cannot be read: code that only moves leaves the file as it is.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..diagnosers.interface import Category
from ..errors import OomdocError, UnreadableInputError
from .interface import Line, Measured

SCHEMA = "oomdoc.baseline/1"
_NUMBERS = ("world_size", "rank", "device", "requested_bytes")
_LARGEST_BYTES = 64 * 2**20


def read(path: Path) -> dict[str, Measured]:
    """By the name of the job. Raises UnreadableInputError for anything that is no baseline."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UnreadableInputError(f"{path} is too large for a baseline")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInputError(f"cannot read the baseline {path}: {error}") from error
    if text.startswith("<<<<<<<") or "\n<<<<<<<" in text:
        raise UnreadableInputError(
            f"{path} holds the marks of a merge conflict: take either side, then oomdoc gate --update"
        )
    try:
        content = json.loads(text)
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}, not {SCHEMA!r}")
        return {str(name): _measured(job) for name, job in content["jobs"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableInputError(f"{path} is no baseline of oomdoc gate: {error!r}") from error


def write(path: Path, jobs: Mapping[str, Measured]) -> None:
    try:
        path.write_text(render(jobs), encoding="utf-8", newline="\n")
    except OSError as error:
        raise OomdocError(f"cannot write {path}: {error.strerror}") from error


def render(jobs: Mapping[str, Measured]) -> str:
    """The text of the file. Jobs by name, so that two branches that each add one touch different places."""
    blocks = [f"  {_json(name)}: {_job(jobs[name])}" for name in sorted(jobs)]
    body = ",\n".join(blocks)
    return f'{{\n "schema": {_json(SCHEMA)},\n "jobs": {{\n{body}\n }}\n}}\n'


def _job(job: Measured) -> str:
    head = [
        ("gpu", job.gpu),
        ("torch", job.torch),
        ("world_size", job.world_size),
        ("rank", job.rank),
        ("device", job.device),
        ("requested_bytes", job.requested_bytes),
        ("allocated_bytes", job.allocated_bytes),
        ("reserved_bytes", job.reserved_bytes),
    ]
    rows = [f"   {_json(key)}: {_json(value)}" for key, value in head]
    held = [f"    {_json(key.value)}: {_json(job.categories[key])}" for key in Category if key in job.categories]
    rows.append('   "categories": {\n' + ",\n".join(held) + "\n   }")
    rows.append('   "lines": [\n' + ",\n".join(f"    {_line(line)}" for line in job.lines) + "\n   ]")
    return "{\n" + ",\n".join(rows) + "\n  }"


def _line(line: Line) -> str:
    content: dict[str, Any] = {
        "bytes": line.bytes,
        "blocks": line.blocks,
        "category": line.category.value,
        "file": line.file,
        "function": line.function,
    }
    if line.code is not None:
        content["code"] = line.code
    elif line.line is not None:
        content["line"] = line.line
    if line.module is not None:
        content["module"] = line.module
    return _json(content)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _measured(job: Mapping[str, Any]) -> Measured:
    numbers = {name: _count(job[name]) for name in _NUMBERS}
    return Measured(
        gpu=_text(job["gpu"]),
        torch=_text(job["torch"]),
        allocated_bytes=None if job["allocated_bytes"] is None else _count(job["allocated_bytes"]),
        reserved_bytes=None if job["reserved_bytes"] is None else _count(job["reserved_bytes"]),
        categories={Category(name): _count(held) for name, held in job["categories"].items()},
        lines=tuple(_read_line(line) for line in job["lines"]),
        **numbers,
    )


def _read_line(line: Mapping[str, Any]) -> Line:
    return Line(
        category=Category(line["category"]),
        file=_text(line["file"]),
        function=_text(line["function"]),
        code=_text(line.get("code")),
        module=_text(line.get("module")),
        bytes=_count(line["bytes"]),
        blocks=_count(line["blocks"]),
        line=_count(line["line"]) if "line" in line else None,
    )


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
