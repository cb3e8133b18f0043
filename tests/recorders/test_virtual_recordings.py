"""Allocations of virtual runs against recordings of real GPUs: each one, in order, with its size."""

import importlib.util
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import virtual_session
from oomdoc.snapshots.model import Action

JOBS = Path(__file__).parent / "jobs"


@pytest.mark.parametrize(
    ("recording", "context", "autocast"),
    [("lm-fwdbwd-100-complete", 100, False), ("lm-fwdbwd-200-amp-complete", 200, True)],
)
def test_small_language_model(shared: Path, card: GpuTarget, recording: str, context: int, autocast: bool) -> None:
    """Forward and backward, in float and under autocast: every allocation is the recorded one (torch 2.9 or older)."""
    with virtual_session(replace(card, torch_version=(2, 9))) as gpu:
        _job("small_lm").forward_and_backward(context, autocast=autocast)
        log = gpu.device.logs[0]
        simulated = [size for action, size in zip(log.action, log.size, strict=True) if action == Action.ALLOC]
        estimated = gpu.tracker.estimated
    # the recording goes on with the optimizer and further steps
    real = _allocations(shared / "data" / "snapshots" / f"{recording}.pickle")[: len(simulated)]
    assert simulated == real
    assert estimated == {}


def _job(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, JOBS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _allocations(path: Path) -> list[int]:
    with path.open("rb") as file:
        snapshot = _PlainUnpickler(file).load()
    trace = next(trace for trace in snapshot["device_traces"] if trace)
    return [event["size"] for event in trace if event["action"] == "alloc"]


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> None:
        raise pickle.UnpicklingError(f"{module}.{name}")
