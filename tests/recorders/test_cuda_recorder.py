"""The recorder of a real GPU, on devices that tests can have: a model of one (`fake_device`), and the virtual GPU.

The virtual GPU knows the truth of every event; the recorder sees only what PyTorch shows of a device.
"""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from oomdoc.diagnosers.interface import CATEGORIES, Category
from oomdoc.diagnosers.profile import build
from oomdoc.errors import OomdocError
from oomdoc.recorders.accelerator import Counted
from oomdoc.recorders.cuda import cuda_recorder
from oomdoc.recorders.virtual.session import Session
from oomdoc.recorders.virtual.storages import RECORDS, storage_key
from oomdoc.snapshots import reader, writer
from oomdoc.snapshots.check import self_check
from oomdoc.snapshots.model import Action
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(path.stem, importlib.util.module_from_spec(spec))
    if not hasattr(module, "__file__") or not vars(module).get("torch"):
        spec.loader.exec_module(module)
    return module


FakeDevice: Any = loaded(HERE / "fake_device.py").FakeDevice


PHASES_OF_A_STEP = ["forward", "other", "backward", "other", "optimizer", "other"]


def perceptron() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))


def train(model: torch.nn.Module, steps: int, batch: int = 64) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(batch, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_roles_and_phases_are_exact_and_the_file_is_pytorchs(tmp_path: Path) -> None:
    """Every byte that anyone can count by hand; and the dict is PyTorch's own, plus one key."""
    with cuda_recorder(steps=None, device=FakeDevice(), rank=3, world_size=4) as recorder:
        train(perceptron(), 3)
        taken = recorder.snapshot(("train.py",))
    assert taken.raw is not None
    assert self_check(taken.snapshot) == ()
    [device] = build([taken.snapshot]).devices
    parameters = 4 * (2 * 256 * 512 + 512 + 256)
    exact = {name.value: held.bytes for name, held in device.categories.items() if held.confidence.value == "exact"}
    assert exact["parameter"] == exact["gradient"] == parameters
    assert exact["optimizer_state"] == 2 * parameters + 4 * 4  # and a step counter for each parameter
    assert (device.peak.step, device.peak.phase) == (1, "optimizer")
    phases = {mark.phase for mark in taken.snapshot.recording.devices[0].marks}  # type: ignore[union-attr]
    assert phases == {"setup", "forward", "backward", "optimizer", "other"}
    writer.dump(taken.snapshot, tmp_path / "a.pickle")
    assert reader.load(tmp_path / "a.pickle").recording.rank == 3  # type: ignore[union-attr]
    assert {"segments", "device_traces", "allocator_settings"} == set(taken.raw)


def test_modules_come_from_labels_and_own_frames_are_left_out() -> None:
    with cuda_recorder(steps=None, device=FakeDevice()) as recorder:
        train(perceptron(), 2)
        snapshot = recorder.snapshot(()).snapshot
    recording = snapshot.recording
    assert recording is not None
    column = recording.devices[0].module
    assert {recording.modules[i] for i in column.tolist() if i >= 0} >= {"0", "1", "2"}
    assert not [frame for frame in snapshot.stacks.frames if "/recorders/cuda.py" in frame.filename]
    assert not [frame for frame in snapshot.stacks.frames if frame.filename.endswith("recorders/hooks.py")]


def test_recomputed_activations_are_activations() -> None:
    """Activation checkpointing: what a module makes within backward, and what backward itself makes."""
    model = torch.nn.ModuleList([perceptron() for _ in range(2)])

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=False)  # type: ignore[no-untyped-call]
            return x

    with cuda_recorder(steps=None, device=FakeDevice()) as recorder:
        train(Net(), 2)
        snapshot = recorder.snapshot(()).snapshot
    recording = snapshot.recording
    assert recording is not None
    trace, recorded = snapshot.devices[0].trace, recording.devices[0]
    hidden = (trace.action == Action.ALLOC) & (trace.size == 64 * 512 * 4)
    backward = next(m.event for m in recorded.marks if m.phase == "backward" and m.step == 1)
    after = next(m.event for m in recorded.marks if m.event > backward and m.phase != "backward")
    inside = np.flatnonzero(hidden[backward:after]) + backward
    kinds = Counter(CATEGORIES[recorded.category[row]] for row in inside)
    assert kinds["activation"] == 4  # Linear and ReLU of two parts, run again
    assert kinds["temporary"] >= 2
    assert recording.facts["recomputes"] is True


def test_an_out_of_memory_error_is_observed_before_the_script_sees_it_and_raised_unchanged() -> None:
    seen: list[str] = []
    device = FakeDevice(capacity_bytes=330 << 20)
    with cuda_recorder(steps=None, device=device) as recorder:
        recorder.on_oom = lambda: seen.append(recorder.hooks.phase)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            train(perceptron(), 3, batch=6000)
        assert recorder.out_of_memory_at_end()
        snapshot = recorder.snapshot(()).snapshot
    assert seen == ["forward"]
    [profile] = build([snapshot]).devices
    assert profile.oom is not None
    assert profile.oom.location is not None
    assert profile.categories[Category.PARAMETER].confidence.value == "exact"
    assert snapshot.recording is not None
    assert snapshot.recording.outside_bytes == 300 << 20  # total, less what the driver had free and PyTorch held


def test_a_ring_that_lost_its_beginning_still_knows_what_is_alive() -> None:
    """Roles of blocks older than the trace go by address; phases are placed from the end."""
    with cuda_recorder(steps=None, device=FakeDevice(), max_entries=120) as recorder:
        model = perceptron()
        train(model, 6)
        snapshot = recorder.snapshot(()).snapshot
    assert len(snapshot.devices[0].trace) == 120
    [device] = build([snapshot]).devices
    assert device.categories[Category.PARAMETER].bytes == 4 * (2 * 256 * 512 + 512 + 256)
    assert device.categories[Category.PARAMETER].confidence.value == "exact"
    assert {step.step for step in device.steps} <= {5, 6}
    marks = snapshot.recording.devices[0].marks  # type: ignore[union-attr]
    assert (marks[-1].step, marks[-1].phase) == (6, "other")
    assert [mark.phase for mark in marks if mark.step == 6] == PHASES_OF_A_STEP


def test_counters_that_the_script_reset_make_roles_disappear_and_never_move() -> None:
    device = FakeDevice()
    with cuda_recorder(steps=None, device=device) as recorder:
        model = perceptron()
        train(model, 2)
        device.allocator.reset_accumulated()
        train(model, 2)
        snapshot = recorder.snapshot(()).snapshot
    assert snapshot.recording is not None
    told = " ".join(snapshot.recording.fidelity["assumptions"])  # type: ignore[arg-type]
    assert "counters" in told
    [profile] = build([snapshot]).devices
    parameters = 4 * (2 * 256 * 512 + 512 + 256)
    exact = [b for b in profile.live if b.category is Category.PARAMETER and b.confidence.value == "exact"]
    assert sum(b.requested_bytes for b in exact) in {0, parameters}


def test_batches_of_a_loader_are_told_by_shape() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    with cuda_recorder(steps=None, device=FakeDevice()) as recorder:
        for _ in DataLoader(TensorDataset(torch.zeros(10, 7), torch.zeros(10, dtype=torch.int64)), batch_size=4):
            pass
        facts = recorder.snapshot(()).snapshot.recording.facts  # type: ignore[union-attr]
    assert {"shape": [4, 7], "dtype": "float32", "count": 2} in facts["inputs"]  # type: ignore[operator]
    assert facts["batch"] == [{"shape": [2, 7], "dtype": "float32"}, {"shape": [2], "dtype": "int64"}]


class Serving(torch.nn.Module):
    """A decoder that keeps a cache, and is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.cache: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        self.cache.append(out + 1)
        return out


def test_a_job_that_serves_is_recorded_by_request() -> None:
    """An outermost forward is a request; what each leaves behind shows as growth from one to the next."""
    with cuda_recorder(steps=None, device=FakeDevice()) as recorder, torch.no_grad():
        model = Serving()
        for _ in range(5):
            model(torch.ones(32, 64))
        snapshot = recorder.snapshot(()).snapshot
    recording = snapshot.recording
    assert recording is not None
    assert (recording.facts["requests"], recording.facts["steps"]) == (5, 0)
    marks = recording.devices[0].marks
    assert [mark.step for mark in marks if mark.phase == "forward"] == [1, 2, 3, 4, 5]
    assert {mark.phase for mark in marks} == {"setup", "forward", "other"}


def test_who_else_holds_the_card_is_told_beside_what_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from oomdoc.recorders import nvml
    from oomdoc.reports.figures import parts

    mine = nvml.Holder(pid=os.getpid(), used_bytes=1 << 30)
    other = nvml.Holder(pid=4242, used_bytes=3 << 30, name="python serve.py")
    card = nvml.Card(
        index=0, name="x", driver="1", total_bytes=1 << 40, used_bytes=4 << 30, uuid="GPU-fake-0", holders=(other, mine)
    )
    monkeypatch.setattr(nvml, "cards", lambda: [card])
    with cuda_recorder(steps=None, device=FakeDevice()) as recorder:
        train(perceptron(), 1)
        snapshot = recorder.snapshot(()).snapshot
    [device] = build([snapshot]).devices
    outside = next(part for part in parts(device) if part.key == "outside")
    assert outside.note == "context; python serve.py 4242 3.00 GiB"


def test_a_device_that_cannot_be_recorded_says_so_before_the_script_starts() -> None:
    device = FakeDevice()
    device.available = lambda: "torch 2.13 is built without CUDA"
    with (
        pytest.raises(OomdocError, match="built without CUDA: nothing can be recorded"),
        cuda_recorder(steps=None, device=device),
    ):
        pass


class OnVirtualGpu:
    """The virtual GPU seen as a real one: events without roles, and counters."""

    type = "cuda"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.labels: list[tuple[int, str]] = [(0, "")]

    def available(self) -> None:
        return None

    def start(self, **_: Any) -> None: ...

    def stop(self) -> None: ...

    def observe_oom(self, call: Any) -> bool:
        return True

    def devices(self) -> list[int]:
        return [0]

    def counted(self, device: int) -> Counted:
        stats = self.session.device.allocators[device].memory_stats()
        return Counted(stats["allocation.all.allocated"], stats["allocation.all.freed"])

    def label(self, text: str) -> None:
        self.labels.append((len(self.session.device.logs[0]), text))

    def address_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        record = RECORDS.get(storage_key(tensor))
        return (0, record.address) if record is not None and record.address else None

    def free_and_total(self, device: int) -> tuple[int, int]:
        return self.session.device.allocators[0].heap.driver.free_bytes(), self.session.target.total_bytes

    def allocated(self, device: int) -> tuple[int, int, int]:
        allocator = self.session.device.allocators[0]
        return allocator.allocated_bytes, allocator.peak_allocated_bytes, allocator.reserved_bytes

    def out_of_memory_errors(self, device: int) -> int:
        return 0

    def identity(self, device: int) -> tuple[str, str]:
        return "virtual", "GPU-virtual"

    def snapshot(self) -> dict[str, Any]:
        raw = writer.to_dict(self.session.snapshot())
        del raw["oomdoc"]
        at, texts = [event for event, _ in self.labels], [text for _, text in self.labels]
        for event, entry in enumerate(raw["device_traces"][0]):
            entry["user_metadata"] = texts[int(np.searchsorted(at, event, "right")) - 1]
        return raw


LEFT_TO_INFERENCE = {CATEGORIES.index(name) for name in ("workspace", "autocast_cache")}


@pytest.mark.parametrize("autocast", [False, True])
def test_against_the_truth_of_the_virtual_gpu(gpu: Session, autocast: bool) -> None:
    """A GPT of two layers: what the recorder claims as exact is what the virtual GPU knows."""
    with cuda_recorder(steps=None, device=OnVirtualGpu(gpu)) as recorder:
        model = loaded(EXAMPLES / "train_gpt.py").GPT(5000, 128, 2, 256, 4, 0.0).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(3):
            tokens = torch.zeros(6, 128, dtype=torch.int64, device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        seen = recorder.snapshot(()).snapshot
    truth = gpu.snapshot()
    assert seen.recording is not None
    assert truth.recording is not None
    mine, real = seen.recording.devices[0], truth.recording.devices[0]
    trace = truth.devices[0].trace
    allocs = trace.action == Action.ALLOC
    wrong = Counter[tuple[str, str]]()
    missed = Counter[str]()  # what is neither role nor phase: left to be inferred, as from a bare snapshot
    claimed = total = 0
    for row in np.flatnonzero(allocs).tolist():
        size, said, known = int(trace.size[row]), int(mine.category[row]), int(real.category[row])
        total += size if known >= 0 and known not in LEFT_TO_INFERENCE else 0
        if said < 0 and known >= 0:
            missed[CATEGORIES[known]] += size
        if said >= 0:
            claimed += size
            if said != known:
                wrong[CATEGORIES[said], CATEGORIES[known] if known >= 0 else "none"] += size
    assert claimed > 0.9 * total, missed
    assert sum(wrong.values()) < 0.01 * claimed, wrong
    for role in ("parameter", "gradient", "optimizer_state", "buffer"):
        index = CATEGORIES.index(role)
        assert np.array_equal(mine.category == index, real.category == index), role
    step_phase = [[(m.event, m.step, m.phase) for m in each.marks] for each in (mine, real)]
    assert [mark[1:] for mark in step_phase[0]] == [mark[1:] for mark in step_phase[1]]
