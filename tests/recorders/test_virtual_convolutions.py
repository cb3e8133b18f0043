"""Workspaces of convolutions: which question is put to cuDNN, what PyTorch makes of the answer, what stays open."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oomdoc.recorders.virtual import convolutions
from oomdoc.recorders.virtual.band import Band
from oomdoc.recorders.virtual.cudnn_choice import waits_for_memory
from oomdoc.recorders.virtual.cudnn_fft import tiling_bytes
from oomdoc.recorders.virtual.cudnn_plans import Dtype, Note, Plan, Problem
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.scratch import Scratch, Target, installed_torch
from oomdoc.recorders.virtual.session import Session, virtual_session
from oomdoc.recorders.virtual.workspaces import scratch_for
from oomdoc.snapshots.model import Action

aten = torch.ops.aten
MIB = 1 << 20
A100 = Target(sm_count=108, threads_per_sm=2048, compute_capability=(8, 0), torch_version=installed_torch())


class Answers:
    """A cuDNN that offers plans with these workspaces, and remembers what it was asked."""

    def __init__(self, *sizes: int, notes: int | None = None) -> None:
        self.offered = tuple(Plan(i, size, frozenset()) for i, size in enumerate(sizes))
        if notes is not None:
            self.offered = (replace(self.offered[0], notes=frozenset([notes])), *self.offered[1:])
        self.asked: list[Problem] = []

    def plans(self, problem: Problem) -> tuple[Plan, ...]:
        self.asked.append(problem)
        return self.offered


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*sizes: int, notes: int | None = None) -> Answers:
        library = Answers(*sizes, notes=notes)
        monkeypatch.setattr(convolutions, "installed", lambda capability: library)
        return library

    monkeypatch.setattr(convolutions, "installed", lambda capability: None)
    return install


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


def meta(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype, device="meta")
    return made.to(memory_format=torch.channels_last) if last else made


def scratch(func: Any, *args: Any, target: Target = A100) -> list[Scratch]:
    return list(scratch_for(func, args, {}, func(*args), target))


def convolution(x: torch.Tensor, weight: torch.Tensor, padding: int = 1, groups: int = 1, **more: Any) -> list[Scratch]:
    settings = (None, [1, 1], [padding, padding], [1, 1], False, [0, 0], groups)
    return scratch(aten.convolution.default, x, weight, *settings, **more)


def test_the_heuristic_s_first_plan_is_taken(answer: Any) -> None:
    library = answer(5 * MIB, 9 * MIB, 0)
    (found,) = convolution(meta(8, 64, 56, 56), meta(64, 64, 3, 3))
    assert (found.bytes, found.instead, found.evidence) == (5 * MIB, (9 * MIB, 0), "measured")
    shape = (8, 64, 56, 56)
    assert library.asked == [
        Problem("forward", shape, (64, 64, 3, 3), shape, (1, 1), (1, 1), (1, 1), Dtype.FLOAT, channels_last=False)
    ]


def test_plans_that_pytorch_filters_out_are_not_taken(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = meta(8, 64, 56, 56), meta(64, 64, 3, 3)
    answer(MIB, 2 * MIB, notes=Note.DOWN_CONVERT_INPUTS)
    assert [each.bytes for each in convolution(x, weight)] == [2 * MIB]
    answer(MIB, 2 * MIB, notes=Note.TENSOR_CORE)
    assert [each.bytes for each in convolution(x, weight)] == [MIB]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert [each.bytes for each in convolution(x, weight)] == [2 * MIB]
    answer(MIB, 2 * MIB, notes=Note.NONDETERMINISTIC)
    assert [each.bytes for each in convolution(x, weight)] == [MIB]
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert [each.bytes for each in convolution(x, weight)] == [2 * MIB]


@pytest.mark.usefixtures("benchmark")
def test_which_of_the_ten_is_fastest_stays_open(answer: Any) -> None:
    """The eleventh plan is never run, but its workspace counts for the trial."""
    answer(5 * MIB, 2 * MIB, *[7 * MIB] * 8, 90 * MIB)
    trial, found = convolution(meta(8, 64, 56, 56, last=True), meta(64, 64, 3, 3, last=True))
    assert (found.bytes, found.between, found.estimated) == (5 * MIB, (2 * MIB, 7 * MIB), True)
    assert (trial.kind, trial.bytes) == ("trial", 90 * MIB)


def test_another_torch_may_come_with_another_cudnn(answer: Any) -> None:
    answer(5 * MIB, 2 * MIB)
    older = replace(A100, torch_version=(2, 4))
    (found,) = convolution(meta(8, 64, 56, 56), meta(64, 64, 3, 3), target=older)
    assert (found.bytes, found.between, found.estimated) == (5 * MIB, (2 * MIB, 5 * MIB), True)


def test_backward_asks_for_each_gradient_that_is_wanted(answer: Any) -> None:
    library = answer(MIB)
    x, weight, grad = meta(8, 64, 56, 56), meta(32, 64, 3, 3), meta(8, 32, 56, 56)
    for mask, directions in (([True, True, False], ["data", "filter"]), ([False, True, False], ["filter"])):
        library.asked.clear()
        settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        found = scratch(aten.convolution_backward.default, grad, x, weight, *settings)
        assert [each.direction for each in library.asked] == directions
        assert {(each.x, each.weight, each.y) for each in library.asked} == {(x.shape, weight.shape, grad.shape)}
        assert [each.until for each in found] == list(range(1, len(found) + 1))  # one after the other


def test_a_transposed_convolution_is_the_gradient_of_a_plain_one(answer: Any) -> None:
    library = answer(MIB)
    x, weight = meta(8, 64, 28, 28), meta(64, 32, 2, 2)
    settings = ([2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    scratch(aten.convolution.default, x, weight, None, *settings)
    grad = meta(8, 32, 56, 56)
    scratch(aten.convolution_backward.default, grad, x, weight, None, *settings, [True, True, False])
    assert [(each.direction, each.x, each.y) for each in library.asked] == [
        ("data", grad.shape, x.shape),
        ("forward", grad.shape, x.shape),
        ("filter", grad.shape, x.shape),
    ]


def test_one_dimension_is_asked_as_two(answer: Any) -> None:
    library = answer(MIB)
    scratch(aten.convolution.default, meta(8, 64, 100), meta(32, 64, 3), None, [2], [1], [1], False, [0], 1)
    assert library.asked == [
        Problem("forward", (8, 64, 1, 100), (32, 64, 1, 3), (8, 32, 1, 50), (1, 2), (0, 1), (1, 1), Dtype.FLOAT, False)
    ]


@pytest.mark.parametrize(("dtype", "pixels"), [(torch.float32, 3), (torch.float16, 3), (torch.float32, 1)])
def test_without_a_cudnn_one_copy_of_each_tensor_is_assumed(answer: Any, dtype: torch.dtype, pixels: int) -> None:
    x, weight = meta(8, 64, 56, 56, dtype=dtype), meta(64, 64, pixels, pixels, dtype=dtype)
    (found,) = convolution(x, weight, padding=pixels // 2)
    copies = (2 * x.numel() + weight.numel()) * x.element_size()
    assert (found.bytes, found.between, found.estimated) == (copies * (pixels > 1), (0, 2 * copies), True)


def test_channels_last_halves_copy_only_the_weight(answer: Any) -> None:
    x, weight = meta(8, 64, 56, 56, dtype=torch.float16, last=True), meta(64, 64, 3, 3, dtype=torch.float16)
    found = [each for each in convolution(x, weight) if each.bytes]
    assert [(each.bytes, each.before, each.estimated) for each in found] == [(weight.numel() * 2, True, False)]


@pytest.mark.parametrize(
    ("dtype", "last", "size", "stride", "native"),
    [
        (torch.float32, False, 3, 1, True),
        (torch.float32, True, 3, 1, False),  # every channels-last one is cuDNN's
        (torch.bfloat16, False, 3, 1, True),
        (torch.float16, False, 3, 1, False),
        (torch.float16, False, 7, 1, True),
        (torch.float16, False, 3, 2, True),  # fewer than 256 channels
    ],
)
def test_who_computes_a_depthwise_convolution(
    answer: Any, dtype: torch.dtype, last: bool, size: int, stride: int, native: bool
) -> None:
    answer(MIB)
    x, weight = meta(8, 64, 56, 56, dtype=dtype, last=last), meta(64, 1, size, size, dtype=dtype)
    settings = (None, [stride, stride], [size // 2, size // 2], [1, 1], False, [0, 0], 64)
    found = [each for each in scratch(aten.convolution.default, x, weight, *settings) if not each.before]
    assert [each.bytes for each in found] == [MIB] * (not native)


@pytest.mark.parametrize("groups", [1, 64])
def test_a_convolution_keeps_channels_last(gpu: Session, groups: int) -> None:
    layer = torch.nn.Conv2d(64, 128, 3, groups=groups).cuda()
    assert layer(torch.ones(2, 64, 16, 16, device="cuda")).is_contiguous()
    layer.to(memory_format=torch.channels_last)
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        out = layer(torch.ones(2, 64, 16, 16, device="cuda").to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.cuda.memory_allocated() - before == 2 * 128 * 14 * 14 * 4


@pytest.mark.usefixtures("benchmark")
def test_a_trial_holds_the_greediest_and_empties_the_cache_at_each_new_shape(answer: Any, gpu: Session) -> None:
    """Once in each direction that is computed, and never again for the same shape and settings."""
    answer(2 * MIB, 64 * MIB)
    log = gpu.device.logs[0]
    layer = torch.nn.Conv2d(8, 8, 3, padding=3).cuda()

    def seen(size: int) -> tuple[bool, int]:
        before = len(log.action)
        x = torch.ones(2, 8, size, size, device="cuda")
        layer(x)
        new = [(log.action[i], log.size[i]) for i in range(before, len(log.action))]
        freed = any(action == Action.SEGMENT_FREE for action, _ in new)
        return freed, max(size for action, size in new if action == Action.ALLOC)

    assert [seen(size) for size in (16, 16, 24, 24)] == [(True, 64 * MIB), (False, 2 * MIB)] * 2
    ((times, largest),) = [each for source, each in gpu.tracker.estimated.items() if "trials" in source]
    assert (times, largest) == (2, 64 * MIB)
    assert torch.cuda.max_memory_allocated() > 64 * MIB > gpu.device.bands[0].low  # the job would do without


def full(card: GpuTarget, room: int) -> GpuTarget:
    """A card of which `room` bytes are for the allocator."""
    return replace(card, total_bytes=card.context_bytes + room)


@pytest.mark.parametrize("tried", [False, True])
def test_where_memory_is_short_another_plan_runs_and_nobody_is_told(
    answer: Any, card: GpuTarget, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", tried)
    answer(300 * MIB, 400 * MIB, 20 * MIB, 0)
    with virtual_session(full(card, 100 * MIB)) as session:
        torch.nn.functional.conv2d(torch.ones(2, 8, 16, 16, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda"))
        log = session.device.logs[0]
        assert Action.OOM not in list(log.action)
        assert max(log.size) == 20 * MIB


def test_where_even_the_smallest_plan_finds_no_memory_it_is_an_out_of_memory(answer: Any, card: GpuTarget) -> None:
    answer(300 * MIB, 200 * MIB)
    with virtual_session(full(card, 100 * MIB)) as session:
        x, weight = torch.ones(2, 8, 16, 16, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=r"200\.00 MiB"):
            torch.nn.functional.conv2d(x, weight)
        assert list(session.device.logs[0].action).count(Action.OOM) == 1


@pytest.mark.usefixtures("benchmark")
def test_what_a_trial_may_show_for_a_moment_is_known_and_in_no_peak(answer: Any, gpu: Session) -> None:
    """Spectra of 512 x 512 filters alone are a gigabyte."""
    answer(MIB)
    x, weight = torch.ones(1, 512, 8, 8, device="cuda"), torch.ones(512, 512, 3, 3, device="cuda")
    torch.nn.functional.conv2d(x, weight, padding=1)
    assert torch.cuda.max_memory_reserved() < 64 * MIB
    assert gpu.device.bands[0].brief > 4352 * 512 * 512


def test_what_is_taken_for_nothing_may_still_be_something(answer: Any, gpu: Session) -> None:
    """Without a cuDNN to ask, a filter of one pixel: nothing, or two copies of all three tensors."""
    x, weight = torch.ones(8, 64, 64, 64, device="cuda"), torch.ones(64, 64, 1, 1, device="cuda")
    torch.nn.functional.conv2d(x, weight)
    peak = torch.cuda.max_memory_allocated()
    assert peak == 2 * x.nbytes + weight.nbytes
    assert gpu.device.bands[0].high == 3 * peak


@pytest.mark.parametrize(
    ("batch", "channels", "published"), [(1, 20, 178_432), (128, 32, 18_522_112)]
)  # mnistCUDNN's first layer; a log of the second is in a repository of 2019, with cuDNN 7.6
def test_tiled_fft_as_published(batch: int, channels: int, published: int) -> None:
    y = (batch, channels, 24, 24)
    problem = Problem("forward", (batch, 1, 28, 28), (channels, 1, 5, 5), y, (1, 1), (0, 0), (1, 1), Dtype.FLOAT, False)
    assert tiling_bytes(problem) == published
    assert tiling_bytes(replace(problem, stride=(2, 2))) == 0
    assert tiling_bytes(replace(problem, channels_last=True)) == 0


@given(st.lists(st.tuples(st.sampled_from("fan"), *[st.integers(0, 50)] * 3), max_size=30))
def test_a_band_is_what_the_least_and_the_most_of_each_estimate_would_make(steps: list[tuple[Any, ...]]) -> None:
    """Against the running sums of three made-up jobs that differ in their estimates only.

    f: free; a: an allocation, marked as an estimate afterwards; n: before.
    """
    band, alive, now, highest = Band(), [], [0, 0, 0], [0, 0, 0]
    for number, (step, size, less, more) in enumerate(steps):
        if step == "f" and alive:
            address, sizes = alive.pop()
            band.gone(address)
            now = [have - each for have, each in zip(now, sizes, strict=True)]
            continue
        less = min(less, size)
        alive.append((number, (size - less, size, size + more)))
        now = [have + each for have, each in zip(now, alive[-1][1], strict=True)]
        if step == "n":
            band.came(number, less, more)
        band.at(now[1])
        if step != "n":
            band.was(number, less, more)
        highest = [max(pair) for pair in zip(highest, now, strict=True)]
    assert [band.low, band.high] == [highest[0], highest[2]]


@pytest.mark.parametrize(
    ("size", "channels", "filters", "groups", "taken"),
    [
        (56, 64, 3, 1, 5 * MIB),
        (56, 64, 1, 1, 0),  # a product of matrices
        (56, 64, 3, 32, 0),  # two channels of each group: an A100 waits for memory
    ],
)
def test_nothing_is_converted_where_that_cannot_be_faster(
    answer: Any, size: int, channels: int, filters: int, groups: int, taken: int
) -> None:
    """19.5 TFLOP/s and 1.56 TB/s, on a torch whose cuDNN is not the installed one."""
    answer(5 * MIB, 7 * MIB, 0)
    card = replace(A100, torch_version=(2, 4), flops=19.5e12, memory_bandwidth=1.555e12)
    x, weight = meta(128, channels, size, size), meta(channels, channels // groups, filters, filters)
    (found,) = convolution(x, weight, padding=filters // 2, groups=groups, target=card)
    assert (found.bytes, found.between) == (taken, (0, 7 * MIB))


def test_a_product_of_matrices_may_have_a_plan_that_was_not_told(answer: Any) -> None:
    answer(5 * MIB, 7 * MIB, 0)
    (found,) = convolution(meta(8, 64, 56, 56), meta(64, 64, 1, 1), padding=0)
    assert (found.bytes, found.between, found.estimated) == (5 * MIB, (0, 5 * MIB), True)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 32), st.sampled_from([1, 3, 5]))
def test_more_arithmetic_never_makes_a_convolution_wait_for_memory(n: int, c: int, size: int, filters: int) -> None:
    """The same tensors, once with each filter reaching one group of channels, once with it reaching all."""
    x, y = (n, 8 * c, size, size), (n, 64, size, size)
    pad = (filters // 2, filters // 2)
    dense = Problem("forward", x, (64, 8 * c, filters, filters), y, (1, 1), pad, (1, 1), Dtype.FLOAT, False)
    grouped = replace(dense, weight=(64, c, filters, filters))
    waits = [waits_for_memory(each, 19.5e12, 1.555e12) for each in (grouped, dense)]
    assert waits != [False, True] or 64 * 8 * c * filters**2 > n * size**2 * (
        8 * c + 64
    )  # unless weights outweigh maps
