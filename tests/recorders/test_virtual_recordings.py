"""Allocations of virtual runs against recordings of real GPUs: each one, in order, with its size."""

import importlib.util
import pickle
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from oomdoc.recorders.virtual.session import Session
from oomdoc.snapshots.model import Action

JOBS = Path(__file__).parent / "jobs"


@pytest.mark.parametrize(
    ("recording", "context", "autocast"),
    [("lm-fwdbwd-100-complete", 100, False), ("lm-fwdbwd-200-amp-complete", 200, True)],
)
def test_small_language_model(shared: Path, gpu: Session, recording: str, context: int, autocast: bool) -> None:
    """Forward and backward, in float and under autocast: all allocations but two are the recorded ones.

    The two are zeros that the torch of the recording makes for a full-range slice `x[:, -1, :]` and newer ones skip.
    """
    _job("small_lm").forward_and_backward(context, autocast=autocast)
    log = gpu.device.logs[0]
    simulated = [size for action, size in zip(log.action, log.size, strict=True) if action == Action.ALLOC]
    # the recording goes on with the optimizer and further steps
    real = _allocations(shared / "data" / "snapshots" / f"{recording}.pickle")[: len(simulated) + 2]
    missing: Counter[int] = Counter()
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, real, simulated, autojunk=False).get_opcodes():
        if kind != "equal":
            assert j1 == j2, f"only simulated, after {i1} recorded ones: {simulated[j1:j2]}"
            missing.update(real[i1:i2])
    logits = 10 * 10000 * (2 if autocast else 4)
    assert missing == Counter({logits: 1, logits * context: 1})
    assert gpu.tracker.estimated == {}
    assert gpu.notes == {}


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
