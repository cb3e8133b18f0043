"""`--target-torch`, `--cuda-context` and the environment: each changes what it would change on the machine, no more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import Session, virtual_session
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action, Snapshot
from oomdoc.snapshots.timeline import extent
from torch.nn import functional as F  # noqa: N812  # everyone's name for it

MIB = 1 << 20
CUBLAS = 8519680


@contextmanager
def session_for(card: GpuTarget, version: tuple[int, int] | None) -> Iterator[Session]:
    with virtual_session(replace(card, torch_version=version)) as session:
        yield session


def allocated(session: Session, run: Callable[[], object]) -> list[int]:
    log = session.device.logs[0]
    start = len(log)
    kept = run()
    sizes = [size for action, size in zip(log.action[start:], log.size[start:], strict=True) if action == Action.ALLOC]
    del kept
    return sizes


@pytest.mark.parametrize(
    ("version", "index", "zeros"),
    [
        ((2, 9), (slice(None), -1, slice(None)), [256, 4096, 4096]),  # the last slice, the select, the first slice
        ((2, 9), (..., slice(None)), [4096]),
        ((2, 9), (slice(None), slice(1, None)), [4096, 4096]),
        ((2, 9), (slice(None), None, 3), [4096, 4096]),
        ((2, 10), (slice(None), -1, slice(None)), [4096]),
        (None, (slice(None), -1, slice(None)), [4096]),
    ],
)
def test_full_slices_are_operations_up_to_2_9(
    card: GpuTarget, version: tuple[int, int] | None, index: tuple[object, ...], zeros: list[int]
) -> None:
    """Each fills a tensor of its own in backward; shapes are the same with and without."""
    with session_for(card, version) as session:
        x = torch.ones(4, 16, 16, device="cuda", requires_grad=True)
        y = x[index]
        assert y.shape == torch.ones(4, 16, 16)[index].shape
        grad = torch.ones_like(y)
        assert allocated(session, lambda: torch.autograd.grad(y, x, grad)) == zeros


def test_an_index_tensor_between_full_slices(card: GpuTarget) -> None:
    rows = torch.tensor([0, 2])
    with session_for(card, (2, 4)):
        x = torch.ones(4, 5, 6, device="cuda")
        assert x[:, rows.cuda(), :].shape == (4, 2, 6)
        assert x[:, rows.cuda()[:, None], rows.cuda()].shape == (4, 2, 2)
        assert x[..., None, :].shape == (4, 5, 1, 6)
        assert torch.equal(torch.arange(6).view(2, 3)[:, 1], torch.tensor([1, 4]))


def test_trunc_normal_makes_no_masks_before_2_12(card: GpuTarget) -> None:
    def init() -> object:
        return torch.nn.init.trunc_normal_(weight, std=0.02)

    with session_for(card, (2, 11)) as session:
        weight = torch.empty(64, 64, device="cuda")
        assert allocated(session, init) == []
        values = torch.nn.init.trunc_normal_(torch.empty(10_000), std=0.02, a=-0.03, b=0.03)
        assert 0.025 < values.abs().max() <= 0.03
    with session_for(card, None) as session:
        weight = torch.empty(64, 64, device="cuda")
        assert len(allocated(session, init)) >= 3


def test_the_math_path_of_attention_is_in_half_before_2_5(card: GpuTarget) -> None:
    largest = {}
    for version in ((2, 4), (2, 5)):
        with session_for(card, version) as session, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            q = torch.ones(1, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
            sizes = allocated(session, lambda q=q: F.scaled_dot_product_attention(q, q, q))
            largest[version] = max(size for size in sizes if size != CUBLAS)
    assert largest == {(2, 4): 8 * 128 * 128 * 2, (2, 5): 8 * 128 * 128 * 4}


def test_everything_is_put_back(card: GpuTarget) -> None:
    own = vars(torch.Tensor).get("__getitem__"), torch.nn.init._no_grad_trunc_normal_
    with session_for(card, (2, 0)) as session:
        assert vars(torch.Tensor).get("__getitem__") is not own[0]
        assert any("torch 2.0" in note for note in session.notes)
    assert (vars(torch.Tensor).get("__getitem__"), torch.nn.init._no_grad_trunc_normal_) == own
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()


JOB = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
import torch
a = torch.ones(1100, 1100, device="cuda")
b = a @ a
"""


def record(tmp_path: Path, text: str, **changes: object) -> Snapshot:
    script = tmp_path / "job.py"
    script.write_text(text)
    result = run(replace(RunSpec(script=str(script), run_dir=tmp_path / "run", gpu="a100-40gb"), **changes))
    assert result.exit_status == 0
    return reader.load(result.snapshots[0])


def test_what_a_script_puts_into_its_environment(tmp_path: Path) -> None:
    """CUDA and cuBLAS read it when they start, which is after the script's first lines."""
    snapshot = record(tmp_path, JOB, context_bytes=900 * MIB)
    [device] = snapshot.devices
    assert device.segments.expandable.all()
    assert snapshot.settings["expandable_segments"] is True
    assert extent(device).peak == 2 * 4 * 1100**2 + 8 * 16 * 1024
    assert snapshot.recording is not None
    outside = snapshot.recording.outside_bytes
    assert outside is not None
    assert 900 * MIB <= outside < 902 * MIB  # the rest of a driver's granule


def test_the_cards_own_context_and_settings(tmp_path: Path) -> None:
    snapshot = record(tmp_path, JOB[JOB.index("import torch") :], alloc_conf="roundup_power2_divisions:1")
    [device] = snapshot.devices
    assert not device.segments.expandable.any()
    assert extent(device).peak == 2 * 4 * 1100**2 + CUBLAS
