"""Every allocation of the trace, and those older than it, as a table: CSV, or Parquet where pyarrow is installed."""

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...diagnosers.attribution.whole_trace import ORDER, History, history
from ...diagnosers.call_sites import Lines
from ...diagnosers.interface import Confidence, DeviceProfile
from ...errors import OomdocError
from ..model import Report
from ..text import CONTROLS
from .clock import microseconds
from .needs import devices_of

Columns = dict[str, list[Any]]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a cell that starts with one of them


def csv_table(report: Report) -> str:
    """With a header; an empty cell is what is not known. Text that a spreadsheet would run has a quote in front."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, device in enumerate(devices_of(report, "csv")):
        columns = _columns(device)
        if number == 0:
            writer.writerow(columns)
        cells = [[_cell(value) for value in column] for column in columns.values()]
        writer.writerows(zip(*cells, strict=True))
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "replace").decode("utf-8").translate(CONTROLS)
    return f"'{text}" if text.startswith(_FORMULA) else text


def parquet(report: Report) -> bytes:
    """The same columns, compressed. Raises OomdocError without pyarrow."""
    devices = devices_of(report, "parquet")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise OomdocError("--format parquet needs pyarrow: pip install pyarrow, or use --format csv") from error
    tables = [pyarrow.table(_plain(_columns(device)), schema=_schema(pyarrow)) for device in devices]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.concat_tables(tables), out, compression="zstd")
    return out.getvalue()


def _plain(columns: Columns) -> Columns:
    """Arrow takes UTF-8 only; a name from a file system can hold half a character."""
    fix: Callable[[Any], Any] = lambda value: (  # noqa: E731
        value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
    )
    return {name: [fix(value) for value in column] for name, column in columns.items()}


def _schema(pyarrow: Any) -> Any:
    kinds = {"u8": pyarrow.uint64(), "i8": pyarrow.int64(), "text": pyarrow.string(), "yes": pyarrow.bool_()}
    return pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


COLUMNS = {
    "rank": "i8", "device": "i8", "address": "u8", "requested_bytes": "i8",
    "alloc_event": "i8",  # empty: older than the trace
    "free_requested_event": "i8", "free_completed_event": "i8",  # empty: not freed in the trace
    "alloc_us": "i8", "free_us": "i8",  # since the first event; empty where no clock was recorded
    "stream": "u8", "category": "text", "confidence": "text", "module": "text",
    "file": "text", "line": "i8", "function": "text",
    "alive_at_report": "yes",  # at the out-of-memory that the job failed with, else at the peak
}  # fmt: skip


def _columns(device: DeviceProfile) -> Columns:
    past = history(device)
    lives = past.lives
    events = len(device.device_snapshot.trace)
    clock, recorded = microseconds(device.device_snapshot.trace)
    event = device.oom.event if device.oom else device.peak.event
    lines = Lines(device.snapshot)
    places = [lines.of(stack) for stack in lives.alloc_stack.tolist()]
    born, gone = lives.birth >= 0, lives.death < events
    requested = _known(lives.free_requested, lives.free_requested < events)
    time = [int(each) for each in clock]
    columns: Columns = {
        "rank": [device.rank] * len(past),
        "device": [device.device] * len(past),
        "address": lives.address.tolist(),
        "requested_bytes": lives.requested.tolist(),
        "alloc_event": _known(lives.birth, born),
        "free_requested_event": requested,
        "free_completed_event": _known(lives.death, gone),
        "alloc_us": [time[at] if at >= 0 and recorded else None for at in lives.birth.tolist()],
        "free_us": [time[at] if at < events and recorded else None for at in lives.death.tolist()],
        "stream": lives.stream.tolist(),
        "category": [ORDER[code].value for code in past.category.tolist()],
        "confidence": _confidence(past),
        "module": [past.modules[at] if 0 <= at < len(past.modules) else None for at in past.module.tolist()],
        "file": [place.file if place else None for place in places],
        "line": [place.line if place else None for place in places],
        "function": [place.function if place else None for place in places],
        "alive_at_report": ((lives.birth <= event) & (lives.death > event)).tolist(),
    }
    assert list(columns) == list(COLUMNS)
    return columns


def _known(values: NDArray[np.int64], known: NDArray[np.bool_]) -> list[int | None]:
    return [value if told else None for value, told in zip(values.tolist(), known.tolist(), strict=True)]


def _confidence(past: History) -> list[str]:
    unknown = [category.value for category in ORDER].index("unknown")
    inferred = np.where(past.category == unknown, Confidence.UNKNOWN.value, Confidence.INFERRED.value)
    found: list[str] = np.where(past.exact, Confidence.EXACT.value, inferred).tolist()
    return found
