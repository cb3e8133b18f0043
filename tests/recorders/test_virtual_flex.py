"""flex_attention: the compiled kernel's memory; the scores where nothing is compiled."""

import pytest
import torch
from oomdoc.recorders.virtual.flex import EAGER
from oomdoc.recorders.virtual.session import Session
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .test_virtual_composites import allocations

B, HEADS, KV_HEADS, LENGTH, WIDTH = 2, 8, 2, 512, 64
OUT = B * HEADS * LENGTH * WIDTH * 2
KV = B * KV_HEADS * LENGTH * WIDTH * 2
ROWS = B * HEADS * LENGTH * 4


def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q >= k


def heads(count: int) -> torch.Tensor:
    """As models make them: a transposed view, so the output is laid out by sequence first."""
    made = torch.zeros(B, LENGTH, count, WIDTH, device="cuda", dtype=torch.bfloat16)
    return made.transpose(1, 2).requires_grad_()


def test_compiled_attention_holds_its_output_and_two_rows_of_floats(gpu: Session) -> None:
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH)
    attend = torch.compile(flex_attention)
    query, key, value = heads(HEADS), heads(KV_HEADS), heads(KV_HEADS)
    kept: list[torch.Tensor] = []
    forward = allocations(gpu, lambda: kept.append(attend(query, key, value, block_mask=mask, enable_gqa=True)))
    assert forward == [OUT, ROWS, ROWS]
    assert kept[0].stride() == query.stride()
    with torch.no_grad():
        grad = torch.ones_like(kept[0])
    backward = allocations(gpu, lambda: kept[0].backward(grad))
    assert backward == [ROWS, OUT, KV, KV]
    assert key.grad is not None
    assert key.grad.shape == key.shape
    assert EAGER not in gpu.notes


def test_a_learned_bias_gets_its_gradient(gpu: Session) -> None:
    bias = torch.zeros(HEADS, device="cuda", requires_grad=True)
    attend = torch.compile(flex_attention)
    query, key, value = (heads(HEADS).detach() for _ in range(3))
    attend(query, key, value, score_mod=lambda score, b, h, q, k: score + bias[h]).sum().backward()
    assert bias.grad is not None
    assert bias.grad.shape == bias.shape


def test_autocast_casts_its_inputs(gpu: Session) -> None:
    attend = torch.compile(flex_attention)
    with torch.autocast("cuda", torch.bfloat16):
        out = attend(*(torch.zeros(1, 1, 128, 64, device="cuda") for _ in range(3)))
    assert out.dtype is torch.bfloat16


def test_without_compile_the_scores_are_there(gpu: Session) -> None:
    query, key, value = (heads(HEADS) for _ in range(3))
    scores = B * HEADS * LENGTH * LENGTH * 4
    made = allocations(gpu, lambda: flex_attention(query, key, value).sum().backward())
    assert scores in made
    assert query.grad is not None
    assert gpu.notes[EAGER] == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_a_block_mask_is_dense_on_the_way_unless_compiled(gpu: Session, compiled: bool) -> None:
    make = torch.compile(create_block_mask) if compiled else create_block_mask
    made: list[object] = []
    largest = max(allocations(gpu, lambda: made.append(make(causal, None, None, 2048, 1024, "cuda"))))
    mask = made[0]
    assert isinstance(mask, torch.nn.attention.flex_attention.BlockMask)
    assert mask.shape == (1, 1, 2048, 1024)
    assert mask.kv_indices.shape == (1, 1, 16, 8)
    assert (largest >= 2048 * 1024) is not compiled
