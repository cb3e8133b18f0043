"""What the pytest plugin measures and says. Imported only for a test that has a virtual GPU."""

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..configs.loader import parse_size
from ..diagnosers.call_sites import Lines
from ..diagnosers.diagnose import diagnose
from ..diagnosers.profile import build
from ..errors import OomdocError
from ..gates.interface import Metric
from ..gates.measure import measure, worst
from ..reports.gate_text import held_row
from ..reports.text import place, size
from ..snapshots.model import Action, BlockState, Snapshot

if TYPE_CHECKING:
    from .recording import Recording

MOST_LINES = 8


class Marker(Protocol):
    @property
    def args(self) -> tuple[Any, ...]: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def check(limit: Marker | None, leak: Marker | None) -> None:
    """Raises OomdocError for a marker that cannot be meant, before the test runs."""
    if limit is not None:
        limit_of(limit.args, limit.kwargs)
    if leak is not None:
        _known(leak.kwargs, {"repetitions", "gpu", "tolerance"}, "gpu_memory_leak")
        if leak.args or int(leak.kwargs.get("repetitions", 3)) < 1:
            raise OomdocError("gpu_memory_leak(repetitions=3) takes a number from 1 on")
        parse_size(leak.kwargs.get("tolerance", 0))


def limit_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Metric]:
    _known(kwargs, {"gpu", "metric"}, "gpu_memory_limit")
    if len(args) != 1:
        raise OomdocError('gpu_memory_limit takes one size: @pytest.mark.gpu_memory_limit("8 GiB")')
    name = str(kwargs.get("metric", Metric.ALLOCATED.value))
    if name not in {each.value for each in Metric}:
        raise OomdocError(f"gpu_memory_limit: metric is one of {', '.join(each.value for each in Metric)}")
    return parse_size(args[0]), Metric(name)


def _known(kwargs: Mapping[str, Any], names: set[str], marker: str) -> None:
    for name in kwargs:
        if name not in names:
            raise OomdocError(f"{marker} has no argument {name!r}: {', '.join(sorted(names))}")


def exceeded(recording: "Recording", gpu: str, limit: int, metric: Metric) -> str:
    """What is wrong with the peak; empty when it is within the limit."""
    profile = build([recording.now()])
    device = worst(profile, metric)
    now = measure(device, 1)
    peak = now.peak(metric)
    assert peak is not None
    if peak <= limit:
        return ""
    over = f"{size(peak - limit)} too much"
    head = f"the test needs {size(peak)} {metric.value} on {gpu}; its limit is {size(limit)}, {over}"
    return "\n".join([head, *_rows(now.lines)])


def held(recording: "Recording") -> str:
    """After an out-of-memory: the cause and the lines that hold the memory."""
    diagnosis = diagnose(build([recording.now()]))
    causes = [f"{each.code} {each.name}: {each.title}" for each in diagnosis.findings[:2]]
    device = max(diagnosis.profile.devices, key=lambda each: (each.oom is not None, each.live_bytes))
    return "\n".join([*causes, *_rows(measure(device, 1).lines)])


def _rows(lines: Sequence[Any]) -> list[str]:
    largest = sorted(lines, key=lambda line: -line.bytes)[:MOST_LINES]
    rows = []
    for held_bytes, category, where, code in map(held_row, largest):
        rows.append("  ".join(filter(None, (f"  {held_bytes:>10}", f"{category:<15}", where, code))))
    return rows


def leaks(repeat: Callable[[], object], recording: "Recording", options: Mapping[str, Any]) -> str:
    """Runs the test again and says what each repetition leaves; empty when none leaves more than `tolerance` bytes.

    The first run is not judged: what is made once (a cache, a workspace) stays.
    """
    repetitions, tolerance = int(options.get("repetitions", 3)), parse_size(options.get("tolerance", 0))
    gc.collect()
    first, before = recording.events, recording.allocated_bytes
    left = []
    for _ in range(repetitions):
        repeat()
        gc.collect()
        left.append(recording.allocated_bytes - before)
        before = recording.allocated_bytes
    if min(left) <= tolerance:  # one that leaves nothing: then the others filled something up
        return ""
    head = f"each of {repetitions} repetitions leaves memory on the GPU: {', '.join(map(size, left))}"
    return "\n".join([head, *_survivors(recording.now(), first)])


def _survivors(snapshot: Snapshot, since: int) -> list[str]:
    """The lines whose blocks were made at event `since` or later and are alive at the end."""
    lines = Lines(snapshot)
    held: dict[str, list[int]] = {}
    for device in snapshot.devices:
        trace = device.trace
        rows = np.flatnonzero(trace.action == Action.ALLOC)
        birth = dict(zip(trace.address[rows].tolist(), rows.tolist(), strict=True))  # the latest of each address
        blocks = device.blocks
        for index in np.flatnonzero(blocks.state != BlockState.INACTIVE).tolist():
            if birth.get(int(blocks.address[index]), -1) >= since:
                where = place(lines.of(int(blocks.stack[index])))
                held.setdefault(where, []).append(int(blocks.requested[index]))
    ranked = sorted(held.items(), key=lambda item: (-sum(item[1]), item[0]))[:MOST_LINES]
    return [f"  {size(sum(sizes)):>10}  {len(sizes)} blocks  {where}" for where, sizes in ranked]
