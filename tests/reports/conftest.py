"""A report with every part filled, put together by hand, so that a renderer is tested without the rooms above it."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oomdoc.diagnosers.compare import CategoryChange
from oomdoc.diagnosers.interface import (
    Cached,
    CallSite,
    Category,
    CategoryBytes,
    Confidence,
    DeviceProfile,
    Diagnosis,
    Finding,
    Inconclusive,
    LiveBlock,
    Location,
    MemoryProfile,
    Oom,
    Peak,
    Severity,
)
from oomdoc.gates.interface import Check, Gate, Line, LineMoved, Metric
from oomdoc.remedies.interface import (
    Band,
    ByteBand,
    Candidate,
    Estimate,
    NotApplicable,
    Numerics,
    Plan,
    Setting,
    Verified,
)
from oomdoc.reports.build import build
from oomdoc.reports.model import Report
from oomdoc.snapshots.model import (
    Blocks,
    DeviceRecording,
    DeviceSnapshot,
    Recording,
    Segments,
    Snapshot,
    Stacks,
    Trace,
)

GIB = 2**30
SOURCE = """import torch


def forward(self, x):
    h = self.ln(x)
    h = self.mlp(h)
    return x + h
"""


def ints(values: list[int], dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype=dtype)


def device_snapshot(events: int) -> DeviceSnapshot:
    zeros = [0] * events
    return DeviceSnapshot(
        device=0,
        trace=Trace(
            action=ints(zeros, np.uint8), address=ints(zeros, np.uint64), size=ints(zeros),
            stream=ints(zeros, np.uint64), time_us=ints(zeros), stack=ints([-1] * events, np.int32),
            pool=ints(zeros, np.int32),
        ),
        segments=Segments(
            address=ints([], np.uint64), total_bytes=ints([]), stream=ints([], np.uint64), large=ints([], np.bool_),
            expandable=ints([], np.bool_), pool=ints([], np.int32), stack=ints([], np.int32),
        ),
        blocks=Blocks(
            address=ints([], np.uint64), size=ints([]), requested=ints([]), state=ints([], np.uint8),
            segment=ints([], np.int32), stack=ints([], np.int32),
        ),
    )  # fmt: skip


def live_block(category: Category, size: int, birth: int) -> LiveBlock:
    return LiveBlock(
        address=birth * 512, requested_bytes=size, block_bytes=size, birth=birth, death=9, category=category,
        confidence=Confidence.EXACT, reason="recorded", share=1.0, stack=-1, module=None,
    )  # fmt: skip


def profile(script: str) -> DeviceProfile:
    recording = DeviceRecording(
        category=ints([4, 0, 3, -1], np.int8), module=ints([0, 0, 0, -1], np.int32),
        estimated=np.array([False, False, True, False]),
    )  # fmt: skip
    job = Recording(
        schema="oomdoc.recording/1", kind="virtual", argv=(script,), versions={"torch": "2.13.0"}, gpu="a100-40gb",
        capacity_bytes=40 * GIB, outside_bytes=GIB // 2, rank=0, world_size=1,
        categories=tuple(each.value for each in Category), modules=("",), devices={0: recording},
        fidelity={
            "assumptions": {f"a float value was read from the GPU at {script}:9: answered 1.0": 4},
            "estimated": {"cuDNN workspace": {"times": 2, "largest_bytes": 3 * 2**20}},
            "estimated_events": 2,
        },
    )  # fmt: skip
    part = device_snapshot(4)
    where = Location(script, 6, "forward")
    return DeviceProfile(
        rank=0, device=0, capacity_bytes=40 * GIB, outside_bytes=GIB // 2, start_bytes=0, final_bytes=20 * GIB,
        peak=Peak(
            requested_bytes=36 * GIB, allocated_bytes=37 * GIB, reserved_bytes=39 * GIB, event=2, step=1,
            phase="forward",
        ),
        oom=Oom(
            event=3, requested_bytes=3 * GIB, device_free_bytes=GIB // 2, allocated_bytes=37 * GIB,
            reserved_bytes=39 * GIB, location=where, step=1, phase="forward",
        ),
        cached=Cached(
            bytes=2 * GIB, fragmented_bytes=GIB // 2, largest_free_block_bytes=GIB, for_request_bytes=3 * GIB,
        ),
        categories={
            Category.ACTIVATION: CategoryBytes(bytes=24 * GIB, confidence=Confidence.EXACT),
            Category.PARAMETER: CategoryBytes(bytes=8 * GIB, confidence=Confidence.EXACT),
            Category.TEMPORARY: CategoryBytes(bytes=4 * GIB, confidence=Confidence.INFERRED),
        },
        live=(
            live_block(Category.ACTIVATION, 24 * GIB, 0),
            live_block(Category.PARAMETER, 8 * GIB, 1),
            live_block(Category.TEMPORARY, 4 * GIB, 2),
        ),
        call_sites=(
            CallSite(bytes=24 * GIB, count=48, category=Category.ACTIVATION, location=where, module="layers.3.mlp"),
            CallSite(bytes=12 * GIB, count=7, category=Category.PARAMETER, location=None, module=None),
        ),
        steps=(),
        snapshot=Snapshot(devices=(part,), stacks=Stacks(), recording=job),
        device_snapshot=part,
        recording=recording,
    )  # fmt: skip


def finding(script: str) -> Finding:
    return Finding(
        code="OOM004", name="activations-dominate", severity=Severity.ERROR,
        title="Activations hold 24.00 GiB, 67 % of the live bytes.", rank=0, device=0, bytes=24 * GIB,
        share_of_peak=24 / 36, confidence=Confidence.EXACT, evidence=("48 blocks saved for backward in 12 modules",),
        locations=(Location(script, 6, "forward"), Location("/nowhere/lib.py", 9, "helper")),
        remedies=("activation-checkpointing", "gradient-accumulation"),
    )  # fmt: skip


def estimate(name: str, expected: int, time: float, why: str, *more: str) -> Estimate:
    return Estimate(
        settings=tuple(Setting(name=each, options={"every": 1}) for each in (name, *more)),
        predicted_peak_bytes=ByteBand(low=expected - GIB, expected=expected, high=expected + GIB),
        saves_bytes=36 * GIB - expected,
        step_time_factor=Band(low=time - 0.1, expected=time, high=time + 0.1),
        numerics=Numerics.IDENTICAL,
        why=why,
    )


def plan() -> Plan:
    return Plan(
        candidates=(
            Candidate(
                estimate=estimate("activation-checkpointing", 18 * GIB, 1.3, "Keeps only the inputs of 12 blocks."),
                fits=True,
                verified=Verified(on="virtual", peak_bytes=17 * GIB, reserved_bytes=18 * GIB, fits=True),
            ),
            Candidate(estimate=estimate("gradient-accumulation", 39 * GIB, 1.1, "Half the batch."), fits=None),
            Candidate(
                estimate=estimate("mixed-precision", 30 * GIB, 0.6, "Two bytes each.", "cpu-offload"),
                fits=True,
                verified=Verified(on="virtual", peak_bytes=0, reserved_bytes=0, fits=False, error="aten::foo is new"),
            ),
        ),
        not_applicable=(NotApplicable(name="fsdp", reason="one GPU: nothing to shard over"),),
    )


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install .[dev])")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip("no Chromium on this machine (make browser)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, in the current folder: reports then name it by its relative path."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


MakeReport = Callable[..., Report]


@pytest.fixture
def make_report(script: Path) -> MakeReport:
    """A failed run with one finding, a plan of three and one cause that could not be told; `changes` replace fields."""

    def make(**changes: object) -> Report:
        whole = Diagnosis(
            profile=MemoryProfile(devices=(profile(str(script)),)),
            findings=(finding(str(script)),),
            inconclusive=(Inconclusive(code="OOM006", reason="one step was recorded; a leak needs three"),),
        )
        report = build(whole, path="runs/rank0.pickle", plan=plan(), next_commands=("oomdoc explain OOM004",))
        return replace(report, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def report(make_report: MakeReport) -> Report:
    return make_report()


@pytest.fixture
def healthy(make_report: MakeReport, script: Path) -> Report:
    """The same job without the failure, on a card whose capacity nobody recorded."""
    quiet = replace(profile(str(script)), oom=None, capacity_bytes=None, outside_bytes=None)
    return build(Diagnosis(profile=MemoryProfile(devices=(quiet,)), findings=()), path="rank0.pickle")


@pytest.fixture
def gate() -> Gate:
    """38 GiB where 30 are allowed; a line that doubled."""
    old = Line(category=Category.ACTIVATION, file="train.py", function="forward", code="h = self.mlp(h)",
               module="blocks.*.mlp", bytes=10 * GIB, blocks=4)  # fmt: skip
    now = replace(old, bytes=20 * GIB, line=6)
    row = CategoryChange(category=Category.ACTIVATION, before_bytes=10 * GIB, after_bytes=20 * GIB)
    return Gate(
        job="train",
        passed=False,
        metric=Metric.ALLOCATED,
        peak_bytes=37 * GIB,
        checks=(Check(name="budget", passed=False, limit_bytes=30 * GIB, text="at most 30.00 GiB"),),
        budget_bytes=30 * GIB,
        baseline_bytes=27 * GIB,
        categories=(row,),
        moved=(LineMoved(before=old, after=now),),
        held=(now,),
    )
