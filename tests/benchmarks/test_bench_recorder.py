"""What the recorder of a real GPU costs on the host: per event of a hook and per step, and the merge of 1,024 ranks."""

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from oomdoc.cli.rank_files import ranks_in
from oomdoc.diagnosers.ranks import RankSummary
from oomdoc.recorders.accelerator import Counted
from oomdoc.recorders.cuda import CudaRecorder
from oomdoc.recorders.summary import dumps
from torch.nn import functional

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
LAYERS, WIDTH, HEADS, VOCAB, CONTEXT, BATCH = 12, 16, 2, 64, 4, 1  # GPT-2's modules, small in everything else
GPT2_STEP_SECONDS = 0.1  # of a step of 124M parameters at batch 8 on an A100: the budget is 2 % of it


class Counters:
    """The calls that the hooks make, answered at once: what is left is the recorder's own time."""

    type = "cpu"

    def __init__(self) -> None:
        self.calls = 0

    def devices(self) -> list[int]:
        return [0]

    def counted(self, device: int) -> Counted:
        self.calls += 1
        return Counted(self.calls, self.calls)

    def label(self, text: str) -> None: ...

    def address_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        return 0, tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def gpt() -> Callable[[], None]:
    spec = importlib.util.spec_from_file_location("bench_gpt", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT(VOCAB, CONTEXT, LAYERS, WIDTH, HEADS, 0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(BATCH, CONTEXT, dtype=torch.int64)

    def step() -> None:
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def best(step: Callable[[], None], times: int = 100) -> float:
    step()
    step()
    seconds = []
    for _ in range(times):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.slow
def test_hooks_cost_little_of_a_gpt2_step(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    plain = best(gpt())
    device: Any = Counters()
    recorder = CudaRecorder(device)
    changes = 0

    def count() -> None:
        nonlocal changes
        changes += 1

    with recorder.hooks.install():
        step = gpt()
        recorded = best(step)
        recorder.hooks.on_change = count
        device.calls = 0
        step()
    added = max(0.0, recorded - plain)
    with capsys.disabled():
        share = 100 * added / GPT2_STEP_SECONDS
        print(  # noqa: T201
            f"\nrecorder's hooks, GPT-2's modules: {1e6 * added:.0f} us a step, {share:.2f} % of one of 100 ms; "
            f"{changes} events of hooks, {1e6 * added / changes:.1f} us each, {device.calls} reads of the counters"
        )
    assert changes > 100
    assert device.calls < 40
    assert added < 0.02 * GPT2_STEP_SECONDS * 4  # machines differ; four times the budget is a mistake


@pytest.mark.slow
def test_a_thousand_summaries_merge_in_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = tuple({"bytes": i, "count": 1, "category": "activation", "file": "a.py", "line": i} for i in range(8))
    for rank in range(1024):
        one = RankSummary(
            rank=rank, world_size=1024, host=f"n{rank // 8}", requested_bytes=rank, sites=sites, stage="a"
        )
        (tmp_path / f"rank{rank}.summary.json").write_text(dumps(one))
    start = time.process_time()
    json.loads((tmp_path / "rank0.summary.json").read_text())
    for path in tmp_path.iterdir():
        path.read_bytes()
    bare = time.process_time() - start
    start = time.process_time()
    assert ranks_in(tmp_path) is not None
    took = time.process_time() - start
    with capsys.disabled():
        print(f"\nmerge of 1,024 ranks: {took:.2f} s, {took / bare:.1f} times reading the bytes alone")  # noqa: T201
    assert took < 10
