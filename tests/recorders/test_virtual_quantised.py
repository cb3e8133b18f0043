"""Quantised training by the libraries themselves: bytes that can be counted by hand."""

import importlib

import pytest
import torch
from oomdoc.recorders.virtual.session import Session
from torch import nn

from .test_virtual_composites import allocations

OUT, IN, TOKENS = 4096, 1024, 2048
WEIGHT = OUT * IN
WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024  # one cuBLAS handle's, below compute capability 9


def rounded(nbytes: int) -> int:
    return -(-nbytes // 512) * 512


def live() -> int:
    return torch.cuda.memory_allocated()


def highest(before: int) -> int:
    return torch.cuda.max_memory_allocated() - before


class TestBitsandbytes:
    """https://github.com/bitsandbytes-foundation/bitsandbytes"""

    @pytest.fixture(autouse=True)
    def library(self, gpu: Session) -> None:
        self.bnb = pytest.importorskip("bitsandbytes")

    def test_a_weight_of_four_bits_with_nested_statistics(self) -> None:
        layer = self.bnb.nn.Linear4bit(IN, OUT, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
        self.bnb.functional.name2qmap.clear()  # a table that the library makes once
        before = live()
        layer = layer.to(torch.bfloat16).cuda()
        blocks = WEIGHT // 64
        tables = 2 * 1024 + rounded(16 * 4)  # of 8 bits, twice; of 4 bits
        assert live() - before == WEIGHT // 2 + blocks + 4 * blocks // 256 + rounded(4) + tables

    def test_forward_and_backward_hold_one_dequantised_weight(self) -> None:
        layer = self.bnb.nn.Linear4bit(IN, OUT, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
        layer = layer.to(torch.bfloat16).cuda()
        x = torch.zeros(TOKENS, IN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = live()
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
        assert live() - before == y.nbytes + WORKSPACE
        absmax = 4 * WEIGHT // 64  # dequantised as well, without and with the mean
        assert highest(before) == y.nbytes + WORKSPACE + 2 * WEIGHT + 2 * absmax
        before = live()
        torch.cuda.reset_peak_memory_stats()
        y.backward(y.detach())
        assert live() - before == x.nbytes + WORKSPACE  # the gradient of x
        assert highest(before) == x.nbytes + WORKSPACE + 2 * WEIGHT

    def test_eight_bit_weights(self) -> None:
        layer = self.bnb.nn.Linear8bitLt(IN, OUT, bias=False, has_fp16_weights=False)
        before = live()
        layer = layer.cuda()
        assert live() - before == WEIGHT + 4 * OUT
        x = torch.zeros(TOKENS, IN, device="cuda", dtype=torch.float16, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad is not None

    @pytest.mark.parametrize("paged", [False, True])
    def test_the_states_of_eight_bit_adam(self, paged: bool) -> None:
        """Two bytes a value, and a scale for each 256 of both; paged ones are no tensors of PyTorch's allocator."""
        layer = nn.Linear(IN, OUT, bias=False, device="cuda", dtype=torch.bfloat16)
        layer(torch.zeros(8, IN, device="cuda", dtype=torch.bfloat16)).sum().backward()
        kind = self.bnb.optim.PagedAdamW8bit if paged else self.bnb.optim.AdamW8bit
        optimizer = kind(layer.parameters())
        before = live()
        optimizer.step()
        scales, tables = 2 * 4 * WEIGHT // 256, 2 * 1024
        assert live() - before == (0 if paged else 2 * WEIGHT) + scales + tables

    def test_paged_states_are_counted_as_the_hosts(self, gpu: Session) -> None:
        layer = nn.Linear(IN, OUT, bias=False, device="cuda")
        layer(torch.zeros(8, IN, device="cuda")).sum().backward()
        self.bnb.optim.PagedAdamW(layer.parameters()).step()
        assert any("managed memory" in note for note in gpu.notes)


class TestTorchao:
    """https://github.com/pytorch/ao"""

    @pytest.fixture(autouse=True)
    def library(self, gpu: Session) -> None:
        pytest.importorskip("torchao")

    @pytest.mark.parametrize(
        ("name", "states"),
        [
            ("AdamW8bit", 2 * WEIGHT + 2 * 4 * WEIGHT // 256 + 2 * 1024),  # values, scales, tables
            ("AdamW4bit", WEIGHT + 2 * 4 * WEIGHT // 128 + 2 * rounded(16 * 4)),
            ("AdamWFp8", 2 * WEIGHT + 2 * 4 * WEIGHT // 256),
        ],
    )
    def test_optimizer_states(self, name: str, states: int) -> None:
        """A step makes nothing but its scales beside them: torchao compiles it."""
        optim = pytest.importorskip("torchao.optim")
        layer = nn.Linear(IN, OUT, bias=False, device="cuda", dtype=torch.bfloat16)
        layer(torch.zeros(8, IN, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer = getattr(optim, name)(layer.parameters())
        before = live()
        optimizer.step()
        assert live() - before == states
        before = live()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        assert highest(before) <= 2 * 4 * WEIGHT // 128

    def test_states_and_gradients_on_the_host(self) -> None:
        optim = pytest.importorskip("torchao.optim")
        layer = nn.Linear(IN, OUT, bias=False, device="cuda", dtype=torch.bfloat16)
        optimizer = optim.CPUOffloadOptimizer(layer.parameters(), torch.optim.AdamW, offload_gradients=True)
        x = torch.zeros(8, IN, device="cuda", dtype=torch.bfloat16)
        layer(x).sum().backward()
        before = live()
        for _ in range(2):
            assert layer.weight.grad is None
            optimizer.step()
            optimizer.zero_grad()
            layer(x).sum().backward()
        assert live() == before
        host = next(iter(optimizer.param_d2h_map.values()))
        assert host.is_pinned()
        assert host.device.type == "cpu"

    def test_float8_keeps_what_bfloat16_keeps(self) -> None:
        """Both operands are cast for each product, from what was saved as it came."""
        float8 = pytest.importorskip("torchao.float8")
        layer = nn.Sequential(nn.Linear(IN, OUT, bias=False, device="cuda", dtype=torch.bfloat16))
        config = float8.Float8LinearConfig(emulate=False)
        float8.convert_to_float8_training(layer, config=config)
        x = torch.zeros(TOKENS, IN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = live()
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
        assert y.nbytes <= live() - before <= y.nbytes + WORKSPACE
        assert highest(before) >= y.nbytes + WEIGHT + TOKENS * IN
        y.backward(torch.ones_like(y))
        assert layer[0].weight.grad is not None

    def test_nf4_weights(self) -> None:
        try:
            nf4tensor = importlib.import_module("torchao.quantization.quantize_.workflows.nf4.nf4_tensor")
        except ImportError:
            nf4tensor = pytest.importorskip("torchao.dtypes.nf4tensor")  # to 0.16
        weight = nf4tensor.to_nf4(torch.zeros(OUT, IN, device="cuda", dtype=torch.bfloat16))
        blocks = WEIGHT // 64
        before = live()
        del weight
        tables = rounded(16 * 2) + rounded(4)  # the sixteen values; the mean of the scales
        assert before - live() == WEIGHT // 2 + blocks + 2 * blocks // 256 + tables


class Asking(torch.Tensor):
    """A wrapper that asks itself for its device while it says what is inside, as torchao's NF4Tensor does."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Asking":
        made: Asking = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        return ["inner"], self.device

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        raise NotImplementedError


def test_a_wrapper_that_asks_itself_for_its_device(gpu: Session) -> None:
    wrapped = Asking(torch.zeros(4, device="cuda"))
    assert wrapped.device == torch.device("cuda:0")
    assert wrapped.__tensor_flatten__() == (["inner"], wrapped.device)


def test_numbers_that_pick_rows_do_not_end_a_compiled_graph(gpu: Session) -> None:
    """As in the search of torchao's 8-bit optimizers; truth values do, whose result has no size before it is there."""
    table, rows = torch.zeros(256, device="cuda"), torch.zeros(1 << 20, device="cuda", dtype=torch.int32)
    by_number = torch.compile(lambda: (table[rows] * 2).sum())
    assert allocations(gpu, by_number) == [4]
    by_truth = torch.compile(lambda: (table[table > 0] * 2).sum())
    assert len(allocations(gpu, by_truth)) > 1


def test_what_one_kernel_reads_twice_is_not_in_memory(gpu: Session) -> None:
    """Computed from five, read by two: one kernel, unless a product comes between its readers."""
    many = [torch.zeros(512, 512, device="cuda") for _ in range(5)]

    def two_readers(between: bool) -> tuple[torch.Tensor, ...]:
        shared = many[0] + many[1] * many[2] + many[3] * many[4]
        first = (shared * 2).sum()
        if between:
            many[0] @ many[1]
        return first, (shared * 3).sum()

    run = torch.compile(two_readers)
    many[0] @ many[1]  # the library's workspace
    assert allocations(gpu, lambda: run(False)) == [4, 4]
    assert 1 << 20 in allocations(gpu, lambda: run(True))
