"""Networks of timm against what nvidia-smi showed on an A100-40GB while timm's own train.py trained them.

The measurements are itu-rad/GPUMemNet's (October 2024). Everything that the script does is in jobs/train_timm.py; what
CUDA itself held on that machine is the one number that no script shows. It is taken from a network of the same
publication that is not in the table (`test_vit`, batch 8: 1731 MiB, of which PyTorch reserves 64): 1667 MiB.
"""

import csv
import gc
import importlib
import runpy
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from oomdoc.recorders.virtual.cudnn_plans import installed
from oomdoc.recorders.virtual.recorder import target_of
from oomdoc.recorders.virtual.session import virtual_session
from oomdoc.reports.figures import PeakRange
from page import MIB, made, percentile, shared, table

JOB = Path(__file__).resolve().parents[1] / "jobs" / "train_timm.py"
CONTEXT_MIB = 1731 - 64
TORCH = (2, 4)  # the newest release when the table was published (2.5 came in the middle of that month)


@dataclass(frozen=True, slots=True)
class Row:
    """One run; sizes in MiB."""

    model: str
    batch: int
    measured: int
    predicted: int
    leave: int  # what a report says to leave beside it
    untried: int  # ... without the trials of cudnn.benchmark

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def over(self) -> bool:
        """It took more than the report recommends to have."""
        return self.measured > self.predicted + self.leave

    @property
    def tried(self) -> bool:
        """It took more than it would without a trial, be it within what the report recommends or not."""
        return self.measured > self.predicted + self.untried


def measured(every: int) -> list[tuple[str, int, int]]:
    """(network, batch size, MiB) of every so-many-th published run, in the published order."""
    with (shared() / "data" / "timm_measured.csv").open() as stream:
        rows = list(csv.DictReader(stream))[::every]
    return [(r["timm_model"], int(r["batch_size"]), int(r["measured_max_gpu_mem_MiB_smi"])) for r in rows]


def usable() -> bool:
    """Whether timm can be imported."""
    sys.path.insert(0, str(JOB.parent))
    try:
        for name in ("timm_anyway", "timm"):
            importlib.import_module(name)
    except ImportError:
        return False
    return True


def predict(model: str, batch: int, main: Callable[[str, int], None]) -> tuple[int, int, int]:
    """(peak with the context, what to leave beside it, that without trials) of a virtual run, in MiB."""
    with virtual_session(target_of("a100-40gb", context_bytes=CONTEXT_MIB * MIB, torch_version=TORCH)) as session:
        main(model, batch)
        allocator, band = session.device.allocators[0], session.device.bands[0]
        reserved = allocator.memory_stats()["reserved_bytes.all.peak"]
        high = reserved + band.high - allocator.peak_allocated_bytes
        known = PeakRange(low=reserved, high=high, brief=band.brief)
    gc.collect()
    context = CONTEXT_MIB * MIB
    leave, untried = (each.leave(reserved, context) for each in (known, replace(known, brief=0)))
    return (reserved + context) // MIB, leave // MIB, untried // MIB


def rows(every: int = 1) -> list[Row]:
    if not usable():
        raise SystemExit("this table needs timm: pip install timm==1.0.9")
    if installed((8, 0)) is None:
        raise SystemExit("this table needs timm and cuDNN: pip install 'oomdoc[cudnn]'")
    warnings.filterwarnings("ignore")
    main = runpy.run_path(str(JOB))["main"]
    found = []
    for model, batch, mib in measured(every):
        found.append(Row(model, batch, mib, *predict(model, batch, main)))
        print(f"{model} {batch}: measured {mib}, predicted {found[-1].predicted}", file=sys.stderr, flush=True)  # noqa: T201
    return found


def summary(found: list[Row]) -> dict[str, float]:
    errors = [abs(row.error) for row in found]
    return {
        "runs": len(found),
        "median": percentile(errors, 0.5),
        "p95": percentile(errors, 0.95),
        "tried": sum(row.tried for row in found) / len(found),
        "under": sum(row.over for row in found) / len(found),
    }


def section(found: list[Row]) -> str:
    by_batch = defaultdict(list)
    by_model: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in found:
        by_batch[row.batch].append(row)
        by_model[row.model][row.batch] = row
    batches = sorted(by_batch)
    head = ("batch size", "runs", "median error", "95th percentile", "beyond all but a trial", "beyond the headroom")
    lines = [(batch, *_cells(summary(by_batch[batch]))) for batch in batches] + [("all", *_cells(summary(found)))]
    each = [
        (model, *(f"{100 * rows[b].error:+.1f}" if b in rows else "" for b in batches))
        for model, rows in sorted(by_model.items())
    ]
    import timm

    return "\n\n".join(
        [
            f"{made()} timm {timm.__version__}; {len(found)} of the {len(measured(1))} published runs, 3 steps each.",
            table(head, lines),
            "Error of each run in percent of what was measured, by batch size:",
            table(("network", *map(str, batches)), each),
        ]
    )


def _cells(of: dict[str, float]) -> tuple[str, ...]:
    return (f"{of['runs']:.0f}", *(f"{100 * of[key]:.1f} %" for key in ("median", "p95", "tried", "under")))
