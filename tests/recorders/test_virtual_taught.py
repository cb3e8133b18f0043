"""Operations of extensions: what an entry point tells is used, what nobody told is named with its line."""

import sys
from pathlib import Path

import pytest
import torch
from oomdoc.recorders.errors import UnsupportedOperationError
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.recorders.virtual.session import Session
from oomdoc.snapshots import reader
from oomdoc.snapshots.timeline import lifetimes

from .test_virtual_composites import allocations

MEMORY = """
import torch
from oomdoc.recorders.virtual.taught import Operation


def mlp(x, w):
    assert x.is_cuda
    return torch.empty(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)


OPERATIONS = {
    "madeup::fused_mlp": Operation(outputs=mlp, workspace=lambda x, w: (3 << 20,)),
    "madeup_cuda:scale_": Operation(outputs=lambda x, by: x),
}
"""
METADATA = "Metadata-Version: 2.1\nName: madeup-memory\nVersion: 1.0\n"
SCRIPT = """
import torch
import madeup_cuda  # compiled for CUDA: not on this machine

library = torch.library.Library("madeup", "DEF")
library.define("fused_mlp(Tensor x, Tensor w) -> Tensor")
x, w = torch.randn(1024, 512, device="cuda"), torch.randn(512, 2048, device="cuda")
before = torch.cuda.memory_allocated()
out = torch.ops.madeup.fused_mlp(x, w)
assert out.shape == (1024, 2048) and out.is_cuda
assert torch.cuda.memory_allocated() - before == 4 * 1024 * 2048
assert torch.cuda.max_memory_allocated() - before == 4 * 1024 * 2048 + (3 << 20)
assert madeup_cuda.scale_(x, 2.0) is x
assert torch.cuda.memory_allocated() - before == 4 * 1024 * 2048
madeup_cuda.{unknown}(x)
"""


def record(folder: Path, monkeypatch: pytest.MonkeyPatch, memory: str = MEMORY) -> RunSpec:
    """A script, and beside it an installed package that tells of its operations."""
    site = folder / "site"
    info = site / "madeup_memory-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "madeup_memory.py").write_text(memory)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[oomdoc.operations]\nmadeup = madeup_memory:OPERATIONS\n")
    script = folder / "train.py"
    script.write_text(SCRIPT.format(unknown="cross_entropy"))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(site), *filter(None, sys.path)]))
    return RunSpec(script=str(script), run_dir=folder / "run", gpu="a100-40gb", steps=0)


def test_taught_operations_are_counted_and_the_next_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(record(tmp_path, monkeypatch))
    assert result.exit_status == 2
    assert result.failure is not None
    line = len(SCRIPT.splitlines())
    assert "madeup_cuda:cross_entropy" in result.failure
    assert f"train.py:{line}" in result.failure
    assert "oomdoc.operations" in result.failure
    (path,) = result.snapshots
    assert 3 << 20 in lifetimes(reader.load(path).devices[0]).requested


def test_an_entry_point_that_tells_nothing_usable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(record(tmp_path, monkeypatch, memory="OPERATIONS = {'madeup::fused_mlp': 3}"))
    assert result.exit_status == 2
    assert result.failure is not None
    assert "entry point madeup of oomdoc.operations" in result.failure


def test_an_operator_that_nobody_taught_gives_no_number(gpu: object) -> None:
    """No shape is made up: the error names the operator and this file."""
    library = torch.library.Library("nobody", "DEF")
    library.define("knows(Tensor x) -> Tensor")
    with pytest.raises(Exception, match=r"nobody::knows allocates[\s\S]*test_virtual_taught.py[\s\S]*register_fake"):
        torch.ops.nobody.knows(torch.ones(4, device="cuda"))
    library._destroy()


def test_an_operator_written_in_python_runs_its_own_code(gpu: object) -> None:
    """Its temporaries are seen: here a float64 copy beside the result; nobody had to tell a shape."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return (x.double() * 2).float()

    for name, on in (("everywhere", None), ("on_cuda", "cuda")):
        op = torch.library.custom_op(f"nobody::{name}", twice, mutates_args=(), device_types=on)
        x = torch.ones(1024, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = op(x)
        assert torch.cuda.memory_allocated() - before == y.nbytes == 4096
        assert torch.cuda.max_memory_allocated() - before == 2 * 8192
        del y


def test_code_that_cannot_run_leaves_the_operator_to_its_fake_kernel(gpu: Session) -> None:
    def compiled(x: torch.Tensor) -> torch.Tensor:
        raise ImportError("madeup_cuda was built for another machine")

    told = torch.library.custom_op("nobody::told", compiled, mutates_args=(), device_types="cuda")
    told.register_fake(torch.empty_like)
    untold = torch.library.custom_op("nobody::untold", compiled, mutates_args=(), device_types="cuda")
    x = torch.ones(1024, device="cuda")
    before = torch.cuda.memory_allocated()
    y = told(x)
    assert torch.cuda.memory_allocated() - before == y.nbytes == 4096
    assert any("nobody::told could not run its own code" in note for note in gpu.notes)
    with pytest.raises(UnsupportedOperationError, match=r"nobody::untold allocates[\s\S]*register_fake"):
        untold(x)


def test_an_operator_that_runs_out_of_memory_does_so(gpu: object) -> None:
    op = torch.library.custom_op(
        "nobody::greedy", lambda x: x.expand(1 << 40).clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    with pytest.raises(torch.OutOfMemoryError):
        op(torch.ones(1, device="cuda"))


def test_inside_compiled_code_an_operator_is_one_kernel(gpu: Session) -> None:
    """What its code makes is not fused with what stands around it."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y * 2

    op = torch.library.custom_op("nobody::opaque", twice, mutates_args=())
    run = torch.compile(lambda x: op(x * 3) + 1)
    x = torch.ones(1024, device="cuda")
    assert allocations(gpu, lambda: run(x)) == [4096, 4096, 4096]  # x * 3, and both of its own; + 1 onto the last
