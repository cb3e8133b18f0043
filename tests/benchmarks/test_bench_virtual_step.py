"""How fast the virtual GPU is: a steady GPT-2 step beside the same step on torch's own `meta` device, in one run."""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import virtual_session
from torch.nn import functional

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
VOCAB, CONTEXT, LAYERS, WIDTH, HEADS, BATCH = 50_257, 1024, 12, 768, 12, 8  # GPT-2, 124M
CARD = GpuTarget(
    name="bench",
    total_bytes=80 << 30,
    context_bytes=500 << 20,
    sm_count=108,
    threads_per_sm=2048,
    compute_capability=(8, 0),
)


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gpt", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def job(device: str) -> Callable[[], None]:
    with torch.device(device):
        model = example().GPT(VOCAB, CONTEXT, LAYERS, WIDTH, HEADS, 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        tokens = torch.zeros(BATCH, CONTEXT, dtype=torch.int64, device=device)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def best_seconds(step: Callable[[], None], times: int) -> float:
    """CPU seconds of the fastest steady step."""
    step()
    step()
    seconds = []
    for _ in range(times):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.slow
def test_a_steady_gpt2_step_takes_less_than_on_meta(capsys: pytest.CaptureFixture[str]) -> None:
    meta = best_seconds(job("meta"), 3)
    with virtual_session(CARD) as session:
        step = job("cuda")
        virtual = best_seconds(step, 8)
        before = session.tracker.operations
        step()
        operations = session.tracker.operations - before
    with capsys.disabled():
        print(f"\nGPT-2 step: meta {meta:.3f} s, virtual {virtual:.3f} s, ratio {virtual / meta:.2f}, {operations} ops")  # noqa: T201
    assert virtual <= 0.7 * meta
