"""The seam to PyTorch's calls: held against the signatures of the torch that is installed, and played with fakes."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from oomdoc.errors import OomdocError
from oomdoc.recorders import accelerator as seam
from oomdoc.recorders.accelerator import Counted, Cuda, Xpu, accelerator

ROOT = Path(torch.__file__).parent


def arguments(file: Path, name: str) -> list[str]:
    """The names of a function's parameters in a source or stub file, read without importing it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    raise AssertionError(f"{file.name} has no {name}")


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_history_call_takes_what_it_is_given(kind: str) -> None:
    name = "_record_memory_history_impl" if kind == "cuda" else "_record_memory_history"
    known = arguments(ROOT / kind / "memory.py", name)
    assert {"enabled", "context", "stacks", "max_entries"} <= set(known)
    record = importlib.import_module(f"torch.{kind}.memory")._record_memory_history
    inspect.signature(record).bind(enabled="all", context="all", stacks="python", max_entries=10)
    inspect.signature(record).bind(enabled=None)
    for words in ('"python"', '"all"', "max_entries"):
        assert words in str(record.__doc__)


def test_the_other_calls_are_there_with_their_parameters() -> None:
    memory, stubs = ROOT / "cuda" / "memory.py", ROOT / "_C" / "__init__.pyi"
    assert arguments(memory, "memory_stats_as_nested_dict") == ["device"]
    assert arguments(memory, "_snapshot")[0] == "device"
    assert arguments(memory, "_set_memory_metadata") == ["metadata"]
    assert arguments(stubs, "_cuda_memoryStats") == ["device"]
    assert arguments(stubs, "_cuda_memorySnapshot") == ["mempool_id"]
    assert arguments(stubs, "_cuda_record_memory_history")[:4] == ["enabled", "context", "stacks", "max_entries"]
    assert arguments(ROOT / "cuda" / "__init__.py", "_lazy_call")[0] == "callable"
    if torch.backends.cuda.is_built():  # in no stub: torch/csrc/cuda/Module.cpp
        assert hasattr(torch._C, "_cuda_attach_out_of_memory_observer")


STATS = {
    "allocation": {"all": {"allocated": 9, "freed": 4, "current": 5, "peak": 7}},
    "allocated_bytes": {"all": {"current": 100, "peak": 300, "allocated": 900, "freed": 800}},
    "reserved_bytes": {"all": {"current": 512, "peak": 512, "allocated": 512, "freed": 0}},
    "num_ooms": 2,
}


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The calls of torch that a device is behind, each keeping what it was given."""
    calls: list[tuple[str, Any]] = []
    state = {"initialised": False, "queue": []}

    def lazy_call(function: Any, **_: Any) -> None:
        function() if state["initialised"] else state["queue"].append(function)  # type: ignore[attr-defined]

    def initialise() -> None:
        state["initialised"] = True
        for function in state["queue"]:  # type: ignore[attr-defined]
            function()

    record = inspect.signature(torch.cuda.memory._record_memory_history)

    def history(*args: Any, **kwargs: Any) -> None:
        calls.append(("history", dict(record.bind(*args, **kwargs).arguments)))

    monkeypatch.setattr(torch.cuda, "_lazy_call", lazy_call)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: state["initialised"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", initialise)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", history)
    monkeypatch.setattr(torch.cuda.memory, "_set_memory_metadata", lambda metadata: calls.append(("label", metadata)))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": []})
    monkeypatch.setattr(
        torch.cuda.memory, "memory_stats_as_nested_dict", lambda device: STATS if device == 1 else dict.fromkeys((), 0)
    )
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", lambda call: calls.append(("observer", call)), raising=False
    )
    return calls


def test_the_history_starts_with_the_device_and_not_before(private: list[tuple[str, Any]]) -> None:
    """A script may choose its devices, or fork, before it uses one."""
    cuda = Cuda()
    cuda.start(max_entries=50, stacks="python")
    assert cuda.observe_oom(print)
    assert private == []
    assert cuda.devices() == []
    assert cuda.counted(0) == Counted(0, 0)
    torch.cuda.init()
    assert private == [
        ("history", {"enabled": "all", "context": "all", "stacks": "python", "max_entries": 50}),
        ("observer", print),
    ]
    assert cuda.devices() == [1]
    assert cuda.counted(1) == Counted(9, 4)
    assert cuda.allocated(1) == (100, 300, 512)
    assert cuda.out_of_memory_errors(1) == 2
    assert cuda.snapshot() == {"segments": [], "device_traces": []}


def test_a_history_of_the_scripts_own_does_not_end_ours(private: list[tuple[str, Any]]) -> None:
    before = torch.cuda.memory._record_memory_history
    cuda = Cuda()
    torch.cuda.init()
    cuda.start(max_entries=50, stacks="all")
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(max_entries=3)
    assert [call for call, _ in private] == ["history"]
    assert cuda.ignored == 2
    cuda.label("layers.3")
    cuda.stop()
    assert private[1:] == [("label", "layers.3"), ("history", {"enabled": None})]
    assert torch.cuda.memory._record_memory_history is before


def test_a_view_has_the_address_of_its_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held against the storage's own address, for a tensor that says it is on a device."""
    whole = torch.arange(12.0)

    class OnDevice(torch.Tensor):
        is_cuda = True

        def get_device(self) -> int:
            return 3

    view = whole[5:].as_subclass(OnDevice)
    assert Cuda().address_of(view) == (3, whole.untyped_storage().data_ptr())


def test_a_tensor_elsewhere_has_no_address() -> None:
    assert Cuda().address_of(torch.ones(3)) is None
    assert Cuda().address_of(torch.empty(3, device="meta")) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("mps", "is not supported"), ("no.such:Thing", "names no accelerator"), ("seam:x:y", "names no accelerator")],
)
def test_what_cannot_be_recorded_says_so(monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    """A backend that keeps no history, and a name that leads nowhere, with what to do."""
    if name == "mps":
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    else:
        monkeypatch.setenv(seam.VARIABLE, name)
    with pytest.raises(OomdocError, match=words):
        accelerator()


def test_each_backend_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seam.VARIABLE, "xpu")
    assert isinstance(accelerator(), Xpu)
    if not torch.backends.cuda.is_built():
        assert "built without CUDA" in str(Cuda().available())
        assert "built without XPU" in str(Xpu().available())
