"""Autocast on virtual tensors follows torch's own lists and cache, and leaves torch as it was."""

import re
from pathlib import Path

import pytest
import torch
from oomdoc.recorders.virtual import autocast, autocast_ops
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import Session, virtual_session

BF16, F32 = torch.bfloat16, torch.float32


def test_every_operation_that_torch_casts_is_known() -> None:
    assert autocast.unknown() == []


@pytest.mark.parametrize(
    ("macro", "names"),
    [
        ("LOWER_PRECISION_FP", autocast_ops.LOWER_PRECISION),
        ("FP32", autocast_ops.FLOAT32),
        ("FP32_SET_OPT_DTYPE", autocast_ops.FLOAT32_RESULT),
        ("PROMOTE", autocast_ops.WIDEST),
    ],
)
def test_policies_are_those_of_the_installed_header(macro: str, names: str) -> None:
    """Each operation stands in the list that torch's own header puts it in."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        pytest.skip("this torch ships no headers")
    body = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*?)\n\n", header.read_text(), re.DOTALL)
    assert body
    listed = {re.sub(r",\s*", ".", entry) for entry in re.findall(r"_\(([\w, ]+)\)", body[1])}
    assert listed <= set(names.split())


def test_products_lower_and_norms_raise(gpu: Session) -> None:
    layer, x = torch.nn.Linear(8, 8).cuda(), torch.ones(4, 8, device="cuda")
    with torch.autocast("cuda", dtype=BF16):
        y = layer(x)
        assert y.dtype is BF16
        assert torch.nn.functional.layer_norm(y, (8,)).dtype is F32
        assert y.softmax(-1).dtype is F32
        assert y.norm().dtype is F32
        assert y.norm(2, dim=1).dtype is F32
        assert (y + x).dtype is F32
        assert y.relu().dtype is BF16
    assert layer(x).dtype is F32


def test_an_explicit_dtype_is_respected(gpu: Session) -> None:
    x = torch.ones(4, 8, device="cuda", dtype=BF16)
    with torch.autocast("cuda", dtype=BF16):
        assert x.sum(dtype=BF16).dtype is BF16
        assert x.sum().dtype is F32
        assert x.log_softmax(-1, dtype=BF16).dtype is BF16


def test_cpu_tensors_and_doubles_stay(gpu: Session) -> None:
    with torch.autocast("cuda", dtype=BF16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is F32
        double = torch.ones(2, 2, device="cuda", dtype=torch.float64)
        assert (double @ double).dtype is torch.float64


def test_mixed_operands_take_the_widest(gpu: Session) -> None:
    low, wide = torch.ones(4, device="cuda", dtype=BF16), torch.ones(4, device="cuda")
    with torch.autocast("cuda", dtype=BF16):
        assert torch.addcmul(low, wide, low).dtype is F32
        assert torch.addcmul(low, low, low).dtype is BF16


def test_binary_cross_entropy_is_refused(gpu: Session) -> None:
    x = torch.full((4,), 0.5, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(x, x)


def test_weights_are_cast_once_and_kept_until_the_context_ends(gpu: Session) -> None:
    """The half copy of a weight is shared by all uses, and gone after the outermost context."""
    weight = torch.nn.Parameter(torch.ones(512, 512, device="cuda"))
    x = torch.ones(512, 512, device="cuda", dtype=BF16)
    torch.mm(x, x)  # cuBLAS
    before = torch.cuda.memory_allocated()
    with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
        torch.mm(x, weight)
        first = torch.cuda.memory_allocated() - before
        torch.mm(x, weight)
        assert torch.cuda.memory_allocated() - before == first == 512 * 512 * 2
        with torch.autocast("cuda", enabled=False):
            pass
        assert torch.cuda.memory_allocated() - before == first
    assert torch.cuda.memory_allocated() == before


def test_cache_can_be_turned_off(gpu: Session) -> None:
    weight = torch.nn.Parameter(torch.ones(512, 512, device="cuda"))
    x = torch.ones(512, 512, device="cuda", dtype=BF16)
    torch.mm(x, x)
    before = torch.cuda.memory_allocated()
    with torch.no_grad(), torch.autocast("cuda", dtype=BF16, cache_enabled=False):
        torch.mm(x, weight)
        assert torch.cuda.memory_allocated() == before


def test_gradients_reach_the_float_weight(gpu: Session) -> None:
    layer, x = torch.nn.Linear(8, 8).cuda(), torch.ones(4, 8, device="cuda")
    with torch.autocast("cuda", dtype=BF16):
        loss = torch.nn.functional.cross_entropy(layer(x), torch.zeros(4, dtype=torch.int64, device="cuda"))
    assert loss.dtype is F32
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is F32


def test_autocast_is_torchs_own_again_afterwards(card: GpuTarget) -> None:
    before = torch._C._dispatch_dump("aten::linear"), torch.clear_autocast_cache
    with virtual_session(card):
        pass
    assert (torch._C._dispatch_dump("aten::linear"), torch.clear_autocast_cache) == before
