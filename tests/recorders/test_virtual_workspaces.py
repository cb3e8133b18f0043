"""What kernels allocate beside their outputs: worked by hand from torch's CUDA sources, or seen in recordings."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from oomdoc.recorders.virtual import (
    attention_scratch,
    convolutions,
    cub,
    index_scratch,
    losses,
    norm_scratch,
    recurrent,
    reduction_scratch,
    workspaces,
)
from oomdoc.recorders.virtual.attention_scratch import num_splits
from oomdoc.recorders.virtual.scratch import MIB, Scratch, Target, cublas_workspace_bytes
from oomdoc.recorders.virtual.session import Session
from oomdoc.recorders.virtual.workspaces import ESTIMATORS, scratch_for

aten = torch.ops.aten
A100 = Target(sm_count=108, threads_per_sm=2048, compute_capability=(8, 0), torch_version=(2, 13), cublas_bytes=8519680)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def scratch(func: Any, *args: Any, target: Target = A100, **kwargs: Any) -> list[Scratch]:
    return list(scratch_for(func, args, kwargs, func(*args, **kwargs), target))


def sizes(found: list[Scratch]) -> list[int]:
    return [each.bytes for each in found]


@pytest.mark.parametrize(
    ("capability", "config", "expected"),
    [
        ((8, 0), None, 8519680),
        ((9, 0), None, 32 * MIB),
        ((12, 0), None, 32 * MIB),
        ((8, 0), ":4096:8", 32 * MIB),
        ((9, 0), ":4096:2:16:8", 8519680),
        ((7, 0), "nonsense", 8519680),
    ],
)
def test_cublas_workspace(capability: tuple[int, int], config: str | None, expected: int) -> None:
    """Eight MiB and a bit before Hopper, 32 MiB from it on; CUBLAS_WORKSPACE_CONFIG overrides."""
    assert cublas_workspace_bytes(capability, config) == expected


def test_a_product_asks_for_its_handle() -> None:
    found = scratch(aten.mm.default, meta(8, 16), meta(16, 4))
    assert [(each.kind, each.bytes) for each in found] == [("handle", 8519680)]


def test_empty_products_do_not_reach_cublas() -> None:
    assert scratch(aten.mm.default, meta(0, 16), meta(16, 4)) == []
    assert scratch(aten.bmm.default, meta(2, 3, 0), meta(2, 0, 4)) == []


def test_products_copy_operands_that_have_gaps() -> None:
    """A column slice keeps stride 1 and is used as it is; a slice with step 2 has no unit stride and is copied."""
    sliced = meta(8, 32)[:, :16]
    stepped = meta(8, 32)[:, ::2]
    assert sizes(scratch(aten.mm.default, sliced, meta(16, 4))) == [8519680]
    assert sizes(scratch(aten.mm.default, stepped, meta(16, 4))) == [8 * 16 * 4, 8519680]


def test_batched_products_copy_broadcast_rows() -> None:
    """An operand expanded along its rows has stride 0 there."""
    expanded = meta(2, 1, 16).expand(2, 8, 16)
    assert sizes(scratch(aten.bmm.default, expanded, meta(2, 16, 4))) == [2 * 8 * 16 * 4, 8519680]
    assert sizes(scratch(aten.bmm.default, meta(2, 8, 16), meta(2, 4, 16).transpose(1, 2))) == [8519680]


@pytest.mark.parametrize(
    ("version", "kinds"),
    [
        ((2, 6), [("call", MIB), ("handle", 8519680)]),
        ((2, 10), [("handle", MIB), ("handle", 8519680)]),
        ((2, 13), [("handle", 8519680)]),
    ],
)
def test_bias_epilogue_by_torch_version(version: tuple[int, int], kinds: list[tuple[str, int]]) -> None:
    """cublasLt's own MiB: per call, then kept, then shared with cuBLAS."""
    found = scratch(aten.addmm.default, meta(4), meta(8, 16), meta(16, 4), target=replace(A100, torch_version=version))
    assert [(each.kind, each.bytes) for each in found] == kinds


@pytest.mark.parametrize(("version", "kind", "nbytes"), [((2, 8), "call", 1 << 20), ((2, 11), "handle", 8519680)])
def test_products_of_float8_run_on_cublaslt(version: tuple[int, int], kind: str, nbytes: int) -> None:
    a, b = (meta(16, 16).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="meta")
    found = scratch(aten._scaled_mm.default, a, b.t(), one, one, target=replace(A100, torch_version=version))
    assert [(each.kind, each.bytes) for each in found] == [(kind, nbytes)]


def test_no_epilogue_for_a_single_row() -> None:
    found = scratch(aten.addmm.default, meta(4), meta(1, 16), meta(16, 4), target=replace(A100, torch_version=(2, 6)))
    assert [each.kind for each in found] == ["handle"]


def test_sum_of_booleans_casts_first() -> None:
    """`(prediction == target).sum()` makes an int64 copy of the mask."""
    found = scratch(aten.sum.default, meta(100, 10, dtype=torch.bool))
    assert sizes(found) == [8000]


def test_half_sums_into_float_without_a_copy() -> None:
    assert scratch(aten.sum.dim_IntList, meta(4, 8, dtype=torch.bfloat16), [1], dtype=torch.float32) == []


def test_accumulating_index_put_as_recorded() -> None:
    """1000 indices into 10,000 rows: the order and sizes of a recorded backward of `weight[ids]`."""
    ids = meta(10, 100, dtype=torch.int64)
    found = scratch(aten.index_put.default, meta(10000, 512), [ids], meta(10, 100, 512), True)
    assert sizes(found) == [8000, 8000, 8000, 8000, 8000, 1]
    assert [each.until for each in found] == [2, -1, -1, -1, -1, -1]
    assert not any(each.estimated for each in found)


def test_plain_index_put_allocates_nothing() -> None:
    ids = meta(5, dtype=torch.int64)
    assert scratch(aten.index_put.default, meta(10, 4), [ids], meta(5, 4)) == []


def test_embedding_backward_up_to_3072_indices_accumulates_in_place() -> None:
    grad, ids = meta(3072, 64), meta(3072, dtype=torch.int64)
    assert scratch(aten.embedding_dense_backward.default, grad, ids, 50257, -1, False) == []


def test_embedding_backward_partial_sums_are_float() -> None:
    """8192 tokens, 4096 wide, bf16: 8192 / 10 + 8192 parts of 4096 floats, and five index-sized buffers."""
    grad, ids = meta(8192, 4096, dtype=torch.bfloat16), meta(8192, dtype=torch.int64)
    found = scratch(aten.embedding_dense_backward.default, grad, ids, 32000, -1, False)
    parts = 819 + 8192
    assert found[-1].bytes == parts * 4096 * 4
    assert sizes(found).count(8192 * 8) == 6
    assert [each.before for each in found][:4] == [True] * 4


def test_embedding_backward_with_few_busy_rows_uses_atomics() -> None:
    """Two token types: a float copy of the weight instead of the parts, since torch 2.11."""
    grad, ids = meta(8192, 768, dtype=torch.bfloat16), meta(8192, dtype=torch.int64)
    args = (aten.embedding_dense_backward.default, grad, ids, 2, -1, False)
    assert scratch(*args)[-1].bytes == 2 * 768 * 4
    assert scratch(*args, target=replace(A100, torch_version=(2, 10)))[-1].bytes == (819 + 2) * 768 * 4


def test_long_top_k_counts_digits_per_block() -> None:
    """One row of 32,768 floats on an A100: 4 items a thread, 32 blocks, 256 digits of 2 bytes each, as recorded."""
    found = scratch(aten.topk.default, meta(32768), 10)
    assert sizes(found)[:-1] == [4, 4, 4, 4, 16384, 128, 128]
    assert scratch(aten.topk.default, meta(1000), 10) == []


def test_flash_backward_holds_a_float_dq() -> None:
    """Llama-3-8B at 4096: row sums, dQ in float, and dK, dV as wide as the queries for grouped heads."""
    q, kv = meta(1, 4096, 32, 128, dtype=torch.bfloat16), meta(1, 4096, 8, 128, dtype=torch.bfloat16)
    q, k = q.transpose(1, 2), kv.transpose(1, 2)
    lse, rng = meta(1, 32, 4096), meta(2, dtype=torch.uint64)
    args = (q, q, k, k, q, lse, None, None, 4096, 4096, 0.0, True, rng, rng)
    found = scratch(aten._scaled_dot_product_flash_attention_backward.default, *args)
    rows = 32 * 4096
    assert sizes(found) == [rows * 4, rows * 128 * 4, rows * 128 * 2, rows * 128 * 2]


def test_flash_backward_copies_a_head_major_output() -> None:
    q = meta(1, 4, 256, 64, dtype=torch.bfloat16)
    lse, rng = meta(1, 4, 256), meta(2, dtype=torch.uint64)
    args = (q, q, q, q, q, lse, None, None, 256, 256, 0.0, True, rng, rng)
    found = scratch(aten._scaled_dot_product_flash_attention_backward.default, *args)
    assert sizes(found)[:2] == [q.numel() * 2] * 2
    assert found[0].before


def test_decoding_splits_the_keys() -> None:
    """One query over 4096 keys of 32 heads on an A100: 216 slots, six splits fill them best."""
    assert num_splits(32, 216, 32) == 6
    assert num_splits(200, 216, 32) == 1
    q, k = meta(1, 32, 1, 128, dtype=torch.bfloat16), meta(1, 32, 4096, 128, dtype=torch.bfloat16)
    found = scratch(aten._scaled_dot_product_flash_attention.default, q, k, k)
    assert sizes(found) == [6 * 32 * 4, 6 * 32 * 128 * 4]


def test_layer_norm_backward_over_many_rows() -> None:
    """131,072 rows of 256: partials of 4096 row blocks, summed; below 65,536 rows none; wide rows none."""

    def backward(rows: int, columns: int, version: tuple[int, int] = (2, 13)) -> list[int]:
        x, w, m = meta(rows, columns), meta(columns), meta(rows, 1)
        args = (x, x, [columns], m, m, w, w, [True, True, True])
        return sizes(
            scratch(aten.native_layer_norm_backward.default, *args, target=replace(A100, torch_version=version))
        )

    found = backward(131072, 256)
    assert found[:3] == [4096 * 256 * 4, 4096 * 256 * 4, 256 * 4]
    assert backward(65536, 256) == []
    assert backward(131072, 4096) == []
    assert backward(131072, 256, (2, 6)) == []


def test_group_norm_keeps_sums_per_channel_in_float() -> None:
    """8 samples of 32 channels in 4 groups, bf16: scale and shift; two sums, two group factors, one channel factor."""
    x, w = meta(8, 32, 16, 16, dtype=torch.bfloat16), meta(32, dtype=torch.bfloat16)
    per_channel, per_group = 8 * 32 * 4, 8 * 4 * 4
    assert sizes(scratch(aten.native_group_norm.default, x, w, w, 8, 32, 256, 4, 1e-5)) == [per_channel] * 2
    assert scratch(aten.native_group_norm.default, x, None, None, 8, 32, 256, 4, 1e-5) == []
    stats = meta(8, 4, dtype=torch.bfloat16)
    args = (x, x, stats, stats, w, 8, 32, 256, 4, [True, True, True])
    found = scratch(aten.native_group_norm_backward.default, *args)
    assert sizes(found) == [per_channel, per_channel, per_group, per_group, per_channel]
    assert not any(each.estimated for each in found)


@pytest.mark.parametrize(("items", "expected"), [(100, 1), (2304, 1)])
def test_small_sorts_need_no_buffer(items: int, expected: int) -> None:
    assert cub.radix_sort_pairs_bytes(items, 8, 8, 16) == expected


def test_cub_sizes_seen_in_recordings() -> None:
    assert cub.select_bytes(100) == 767
    assert cub.reduce_bytes(10**6, 108) == 17663
    assert cub.scan_bytes(100) == 1023
    assert [cub.radix_sort_pairs_bytes(items, 8, 8, 14) for items in (4096, 8192)] == [72191, 138751]


def test_every_entry_names_its_source() -> None:
    """No operation may have an estimator that torch does not have an overload for."""
    assert all(isinstance(func, torch._ops.OpOverload) for func in ESTIMATORS)
    assert len(ESTIMATORS) > 50


def test_every_entry_says_what_its_size_rests_on() -> None:
    """A file of PyTorch, cub or flash-attention, a measurement, or that it is an estimate and why."""
    families = (attention_scratch, convolutions, index_scratch, losses, norm_scratch, recurrent, reduction_scratch)
    said = [value for family in (*families, workspaces) for name, value in vars(family).items() if name.isupper()]
    sources = [value for value in said if isinstance(value, str)]
    assert len(sources) > 20
    words = r"measured|not published|assumed|\.(cu|cuh|cpp|h)\b|cub::"
    assert [source for source in sources if not re.search(words, source)] == []
    assert Scratch(bytes=1, source=workspaces.CUBLAS).evidence == "measured"
    assert Scratch(bytes=1, source=norm_scratch.LAYER_NORM).evidence == "read in source"
    assert Scratch(bytes=1, source=convolutions.WORKSPACE, estimated=True).evidence == "estimated"


@pytest.mark.parametrize(
    ("dtype", "last", "training", "flagged"),
    [
        (torch.float16, True, True, True),
        (torch.float32, True, True, True),
        (torch.float16, False, True, False),  # channels first: not the persistent kernels
        (torch.float16, True, False, False),
        (torch.bfloat16, True, True, False),  # torch's own kernels
    ],
)
def test_cudnn_s_unknown_batch_norm_reserve_is_an_estimate_of_zero(
    dtype: torch.dtype, last: bool, training: bool, flagged: bool
) -> None:
    x = meta(8, 64, 16, 16, dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if last else x
    w = meta(64)
    found = scratch(aten.native_batch_norm.default, x, w, w, w, w, training, 0.1, 1e-5)
    assert [(each.bytes, each.estimated) for each in found] == [(0, True)] * flagged
    assert scratch(aten.native_batch_norm.default, x, None, None, w, w, training, 0.1, 1e-5) == []


def test_the_report_names_the_batch_norm_reserve(gpu: Session) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64)).cuda()
    model.to(memory_format=torch.channels_last)
    x = torch.ones(2, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16):
        model(x).sum().backward()
    recording = gpu.snapshot().recording
    assert recording is not None
    estimated = recording.fidelity["estimated"]
    assert isinstance(estimated, Mapping)
    assert [each for each in estimated if "batch norm" in each and "taken as 0" in each]
