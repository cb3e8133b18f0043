"""What `oomdoc fit` found: the record, as a table and as JSON."""

import json as plain_json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..remedies.largest import Outcome, Probe, Search
from .canvas import draw
from .text import percent, size

SCHEMA = "oomdoc.fit/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """One card and world size. `notes`: what limits the answer, the search's own among them."""

    gpu: str | None
    world_size: int
    search: Search
    largest_batch: Mapping[str, object] | None  # what the recording says of the data's largest batch
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    script: str
    args: tuple[str, ...]
    template: str
    low: int
    high: int
    steps: int
    rows: tuple[FitRow, ...]

    @property
    def fits(self) -> bool:
        """Some value fits in every row."""
        return all(row.search.largest is not None for row in self.rows)


def json(fit: Fit) -> str:
    """`oomdoc.fit/1`, as configs/fit.schema.json has it."""
    content = {
        "schema": SCHEMA,
        "script": fit.script,
        "args": list(fit.args),
        "vary": {"template": fit.template, "low": fit.low, "high": fit.high},
        "steps": fit.steps,
        "rows": [
            {
                "gpu": row.gpu,
                "world_size": row.world_size,
                "largest": row.search.largest.value if row.search.largest else None,
                "peak_allocated_bytes": row.search.largest.allocated_bytes if row.search.largest else None,
                "peak_reserved_bytes": row.search.largest.reserved_bytes if row.search.largest else None,
                "monotone": row.search.monotone,
                "largest_batch": dict(row.largest_batch) if row.largest_batch is not None else None,
                "notes": list(row.notes),
                "probes": [_probe(probe) for probe in row.search.probes],
            }
            for row in fit.rows
        ],
    }
    return plain_json.dumps(content, indent=1) + "\n"


def _probe(probe: Probe) -> dict[str, object]:
    return {
        "value": probe.value,
        "outcome": probe.outcome.value,
        "peak_allocated_bytes": probe.allocated_bytes,
        "peak_reserved_bytes": probe.reserved_bytes,
        "room_bytes": probe.room_bytes,
        "steps": probe.steps,
        "detail": probe.detail,
    }


def terminal(fit: Fit, *, width: int, color: str | None, ascii_only: bool = False) -> str:
    def body(console: Console) -> Iterable[RenderableType]:
        return _body(fit)

    return draw(body, width=width, color=color, ascii_only=ascii_only)


def _body(fit: Fit) -> Iterable[RenderableType]:
    yield Text(f"The largest {fit.template} that fits, {fit.low} to {fit.high}, in {fit.steps} steps of {fit.script}")
    yield Text("")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("GPU", "ranks", "largest", "peak", "of the room", "next"):
        table.add_column(title, justify="left" if title in ("GPU", "next") else "right")
    for row in fit.rows:
        best, limit = row.search.largest, row.search.limit
        table.add_row(
            row.gpu or "this machine's",
            str(row.world_size),
            str(best.value) if best else "none",
            size(best.allocated_bytes) if best and best.allocated_bytes is not None else "",
            percent(best.allocated_bytes, best.room_bytes) if best and best.allocated_bytes is not None else "",
            "" if limit is None else f"{limit.value}: {limit.outcome.value}",
        )
    yield table
    shown: list[str] = []
    for row in fit.rows:
        for note in row.notes:
            text = note if len(fit.rows) == 1 else f"{row.gpu} x{row.world_size}: {note}"
            if text not in shown:
                shown.append(text)
    if shown:
        yield Text("")
        yield from (Text(f"· {note}") for note in shown)


def notes_of(search: Search, largest_batch: Mapping[str, object] | None, template: str) -> tuple[str, ...]:
    """The search's notes, and what is known of the data."""
    notes = list(search.notes)
    caught = [probe for probe in search.probes if probe.outcome is Outcome.OUT_OF_MEMORY and probe.detail]
    notes += [f"{probe.value}: {probe.detail}" for probe in caught[:1]]
    if search.largest is not None and search.largest.steps == 0:
        notes.append("no optimizer step was taken: the script was run to its end")
    if largest_batch is not None and search.largest is not None:
        notes.append(_of_data(largest_batch, template))
    return tuple(notes)


def _of_data(facts: Mapping[str, object], template: str) -> str:
    if not facts.get("loader"):
        return "no DataLoader was drawn from: only the batches of these steps were seen"
    if "reason" in facts:
        return f"only the batches of these steps were seen: {facts['reason']}"
    read, samples = facts.get("read"), facts.get("samples")
    part = f"all {samples}" if read == samples else f"{read} of {samples}"
    if facts.get("uniform"):
        return f"{part} samples are of one size: every batch is like another"
    return f"every second batch was the largest that the data can make (by the sizes of {part} samples)"
