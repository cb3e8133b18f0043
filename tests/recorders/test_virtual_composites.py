"""Composites run as CUDA runs them: what they save, what they allocate on the way, what is put back."""

from collections.abc import Callable

import pytest
import torch
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import Session, virtual_session
from oomdoc.snapshots.model import Action
from torch.nn import functional as F  # noqa: N812  # everyone's name for it

BF16 = torch.bfloat16


def allocations(session: Session, run: Callable[[], object]) -> list[int]:
    """Sizes that `run` allocates, in order; what it returns stays alive until the sizes are read."""
    log = session.device.logs[0]
    start = len(log)
    kept = run()
    sizes = [size for action, size in zip(log.action[start:], log.size[start:], strict=True) if action == Action.ALLOC]
    del kept
    return sizes


def test_dropout_keeps_a_boolean_mask(gpu: Session) -> None:
    """One byte an element, not a float mask; nothing at all in evaluation."""
    x = torch.ones(1000, 10, device="cuda", requires_grad=True)
    assert allocations(gpu, lambda: F.dropout(x, 0.1)) == [40000, 10000]
    assert allocations(gpu, lambda: F.dropout(x, 0.1, training=False)) == []
    with torch.inference_mode():
        assert allocations(gpu, lambda: F.dropout(x, 0.1)) == [40000, 10000]


def test_dropout_on_cpu_is_torchs_own(gpu: Session) -> None:
    torch.manual_seed(0)
    inside = F.dropout(torch.ones(100), 0.5)
    torch.manual_seed(0)
    assert torch.equal(inside, torch.ones(100) * (torch.empty(100).bernoulli_(0.5) / 0.5))


def test_half_softmax_into_float_makes_no_copy(gpu: Session) -> None:
    half = torch.ones(64, 128, device="cuda", dtype=torch.float16)
    brain = half.to(BF16)
    assert allocations(gpu, lambda: half.softmax(-1, dtype=torch.float32)) == [64 * 128 * 4]
    assert allocations(gpu, lambda: brain.softmax(-1, dtype=torch.float32)) == [64 * 128 * 4] * 2


def test_rms_norm_is_one_kernel(gpu: Session) -> None:
    """The result and one float per row, kept for backward; backward makes two gradients."""
    x = torch.ones(32, 256, device="cuda", dtype=BF16, requires_grad=True)
    w = torch.ones(256, device="cuda", dtype=BF16, requires_grad=True)
    assert allocations(gpu, lambda: F.rms_norm(x, (256,), w)) == [32 * 256 * 2, 32 * 4]
    y = F.rms_norm(x, (256,), w)
    grad = torch.ones_like(y)
    assert allocations(gpu, lambda: torch.autograd.grad(y, (x, w), grad)) == [32 * 256 * 2, 256 * 2]


@pytest.mark.parametrize("activation", [F.silu, F.mish])
def test_the_backward_of_an_activation_is_one_kernel(gpu: Session, activation: Callable[..., torch.Tensor]) -> None:
    """Torch has a composite of them too, of up to eight operations, which CUDA never runs."""
    x = torch.ones(4096, device="cuda", requires_grad=True)
    y = activation(x)
    grad = torch.ones_like(y)
    assert allocations(gpu, lambda: torch.autograd.grad(y, x, grad)) == [4 * 4096]
    with torch.inference_mode():
        assert allocations(gpu, lambda: activation(x)) == [4 * 4096]


def test_binary_cross_entropy_shows_its_temporaries(gpu: Session) -> None:
    """log_sigmoid(input), 1 - target, the mean: ATen/native/Loss.cpp."""
    x, t = torch.ones(4096, device="cuda"), torch.ones(4096, device="cuda")
    sizes = allocations(gpu, lambda: F.binary_cross_entropy_with_logits(x, t))
    assert [size for size in sizes if size == 4096 * 4] == [4096 * 4] * 2
    assert sizes[-1] == 4


def test_logsumexp_shows_its_temporaries(gpu: Session) -> None:
    x = torch.ones(64, 1000, device="cuda")
    sizes = allocations(gpu, lambda: x.logsumexp(-1))
    assert 64 * 1000 * 4 in sizes


def test_prod_backward_divides(gpu: Session) -> None:
    """Not the cumulative products that a tensor without values needs."""
    x = torch.ones(64, 32, device="cuda", requires_grad=True)
    y = x.prod(-1)
    grad = torch.ones_like(y)
    sizes = allocations(gpu, lambda: torch.autograd.grad(y, x, grad))
    assert sizes == [64 * 32, 64 * 32 * 4, 64 * 32 * 4]


def test_prod_gradient_is_right_on_cpu(gpu: Session) -> None:
    x = torch.tensor([[2.0, 3.0], [4.0, 0.5]], requires_grad=True)
    x.prod(1).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0, 2.0], [0.5, 4.0]]


@pytest.mark.parametrize("op", ["dropout", "scaled_dot_product_attention", "softmax.int", "prod", "_fused_rms_norm"])
def test_torchs_own_kernels_are_back(op: str, card: GpuTarget) -> None:
    def registrations() -> list[str]:
        dump = torch._C._dispatch_dump(f"aten::{op}").splitlines()
        return [line for line in dump if not line.startswith("Meta")]

    before = registrations()
    with virtual_session(card):
        assert registrations() != before or op == "_fused_rms_norm"
    assert registrations() == before
