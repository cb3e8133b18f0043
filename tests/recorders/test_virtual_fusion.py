"""Compiled code: fused results take no memory, what a product reads in backward is saved, the rest is made again."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from oomdoc.recorders.virtual.session import Session
from torch import nn
from torch.nn import functional as F  # noqa: N812  # everyone's name for it
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .test_virtual_composites import allocations

ROWS, WIDTH = 1024, 256
BYTES = ROWS * WIDTH * 4


def live() -> int:
    return torch.cuda.memory_allocated()


@contextmanager
def kept(expected: int, rest: int = 64 << 10) -> Iterator[None]:
    """Within, `expected` bytes more come to be held, but for statistics and the like."""
    before = live()
    yield
    assert expected <= live() - before <= expected + rest


def values(**kwargs: bool) -> torch.Tensor:
    return torch.zeros(ROWS, WIDTH, device="cuda", **kwargs)


def test_a_chain_of_elementwise_operations_makes_only_its_result(gpu: Session) -> None:
    chain = torch.compile(lambda x: ((x * 2).sin() + 1).exp())
    x = values()
    assert allocations(gpu, lambda: chain(x)) == [BYTES]


def test_a_reduction_reads_through_the_chain(gpu: Session) -> None:
    loss = torch.compile(lambda x: (x.float() * 2).pow(2).sum())
    x = torch.zeros(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    assert allocations(gpu, lambda: loss(x)) == [4]


def test_a_product_reads_from_memory(gpu: Session) -> None:
    weight = torch.zeros(WIDTH, WIDTH, device="cuda")
    run = torch.compile(lambda x: (x * 2) @ weight)
    run(values())  # the library's workspace
    x = values()
    assert allocations(gpu, lambda: run(x)) == [BYTES, BYTES]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return y


def test_compiled_saves_what_products_read_and_no_more(gpu: Session) -> None:
    """The normalised input, the product and the activation of it; eagerly the same here, in float32."""
    model = torch.compile(Mlp().cuda())
    x = values(requires_grad=True)
    model(x).sum().backward()
    model.zero_grad(set_to_none=False)
    with kept(BYTES + 4 * BYTES + 4 * BYTES + BYTES):  # and the result, which is x + down
        y = model(x)
    del y


def test_under_autocast_one_cast_serves_three_products(gpu: Session) -> None:
    layers = [nn.Linear(WIDTH, WIDTH, bias=False).cuda() for _ in range(3)]
    run = torch.compile(lambda x: [layer(x) for layer in layers])
    x = values()
    half, weight = BYTES // 2, WIDTH * WIDTH * 2
    with torch.autocast("cuda", torch.bfloat16):
        run(x)  # the library's workspace
        assert sorted(allocations(gpu, lambda: run(x))) == [weight] * 3 + [half] * 4


def test_backward_is_fused_too_and_gives_every_gradient(gpu: Session) -> None:
    model = torch.compile(Mlp().cuda())
    x = values(requires_grad=True)
    y = model(x)
    model(x).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = live()
    y.sum().backward()
    assert all(each.grad is not None and each.grad.shape == each.shape for each in model.parameters())
    assert x.grad is not None
    # the gradient of the activation, in place of the activation's own bytes as they go; never two more of them
    assert torch.cuda.max_memory_allocated() - before < 2 * 4 * BYTES


def test_outside_compiled_code_everything_is_in_memory(gpu: Session) -> None:
    compiled = torch.compile(lambda x: x * 2)
    x = values()
    with kept(2 * BYTES):
        y = compiled(x)
        z = y + 1
    assert allocations(gpu, lambda: (x * 2) + 1) == [BYTES, BYTES]
    del z


def test_eager_backends_and_disabled_calls_change_nothing(gpu: Session) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    x = values()
    for run in (torch.compile(chain, backend="eager"), torch.compile(chain, disable=True)):
        assert allocations(gpu, lambda run=run: run(x)) == [BYTES, BYTES]


def test_estimates_are_marked(gpu: Session) -> None:
    run = torch.compile(lambda x: x * 2)
    x = values()
    before = len(gpu.device.logs[0])
    y = run(x)
    assert list(gpu.device.logs[0].estimated[before:]) == [1]
    del y


@pytest.mark.parametrize("compiled", [False, True])
def test_training_steps_leave_nothing_behind(gpu: Session, compiled: bool) -> None:
    model = nn.Sequential(*(Mlp() for _ in range(3))).cuda()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters())
    after = []
    for _ in range(4):
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(values()).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
        after.append(live())
    assert after[1] == after[2] == after[3]


def test_a_read_value_and_a_function_kept_out_end_the_graph(gpu: Session) -> None:
    outside = torch.compiler.disable(lambda: None)
    x = values()
    for end_graph, extra in ((lambda y: y.sum().item(), [4]), (lambda y: outside(), [])):

        def run(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            end_graph(y)  # noqa: B023  # called within the round
            return y + 1

        assert sorted(allocations(gpu, lambda: torch.compile(run)(x))) == [*extra, BYTES, BYTES]


def test_what_compiled_code_keeps_out_is_not_fused(gpu: Session) -> None:
    outside = torch.compiler.disable(lambda y: (y + 1).exp())
    x = values()
    assert allocations(gpu, lambda: torch.compile(lambda x: outside(x * 2) * 3)(x)) == [BYTES] * 4


def test_the_gradients_of_a_graph_are_added_together(gpu: Session) -> None:
    """Eagerly each goes as soon as it is added to the one of the step before."""
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8))).cuda()
    one = WIDTH * WIDTH * 4
    peaks = []
    for model in (copy.deepcopy(layers), torch.compile(layers)):
        for _ in range(2):
            loss = model(torch.zeros(1, WIDTH, device="cuda")).sum()
            torch.cuda.reset_peak_memory_stats()
            before = live()
            loss.backward()
        peaks.append(round((torch.cuda.max_memory_allocated() - before) / one))
        assert live() <= before
    assert peaks == [1, 8]


@pytest.mark.parametrize("reentrant", [False, True])
def test_compiled_code_has_one_kind_of_checkpoint(gpu: Session, reentrant: bool) -> None:
    block = Mlp().cuda()
    step = torch.compile(lambda x: checkpoint(block, x * 2, use_reentrant=reentrant).sum())
    step(values(requires_grad=True)).backward()  # the library's workspaces
    block.zero_grad(set_to_none=False)
    x = values(requires_grad=True)
    with kept(0):  # x * 2 is computed again as well
        loss = step(x)
    loss.backward()
    assert x.grad is not None


def test_what_was_never_needed_keeps_nothing(gpu: Session) -> None:
    """The chain reads the product through a result that dies before the code ends."""
    weight = torch.zeros(WIDTH, 4 * WIDTH, device="cuda")

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.relu(x @ weight).view(ROWS, 4, WIDTH).amax(1)
        return x

    compiled = torch.compile(run)
    compiled(values())  # the library's workspace
    x = values()
    before = live()
    torch.cuda.reset_peak_memory_stats()
    compiled(x)
    assert torch.cuda.max_memory_allocated() - before <= 2 * 4 * BYTES + 2 * BYTES


def test_a_checkpoint_around_compiled_code_keeps_its_input_only(gpu: Session) -> None:
    model = torch.compile(Mlp().cuda())
    model(values(requires_grad=True)).sum().backward()  # the library's workspaces
    model.zero_grad(set_to_none=False)
    x = values(requires_grad=True)
    with kept(BYTES):  # the result
        y = checkpoint(model, x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_policy_saves_is_kept_if_backward_reads_it(gpu: Session, compiled: bool) -> None:
    """Of two products, the second only goes into the sum that the block returns."""
    mm = torch.ops.aten.mm.default

    def saved() -> Any:
        policy = CheckpointPolicy
        return create_selective_checkpoint_contexts(
            lambda _, op, *args, **kwargs: policy.MUST_SAVE if op is mm else policy.PREFER_RECOMPUTE
        )

    up, down = nn.Linear(WIDTH, WIDTH, bias=False).cuda(), nn.Linear(WIDTH, WIDTH, bias=False).cuda()

    def block(x: torch.Tensor) -> torch.Tensor:
        return x + down(torch.relu(up(x)))

    def run(x: torch.Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=False, context_fn=saved)

    step = torch.compile(run) if compiled else run
    step(values(requires_grad=True)).sum().backward()  # the library's workspaces
    x = values(requires_grad=True)
    with kept(BYTES + BYTES if compiled else 3 * BYTES):  # the sum, the first product, and eagerly the second
        y = step(x)
    y.sum().backward()
    assert x.grad is not None


def test_a_kernel_writes_onto_what_it_reads_last(gpu: Session) -> None:
    weight = torch.zeros(WIDTH, WIDTH, device="cuda")
    run = torch.compile(lambda x: x + x @ weight)
    run(values())  # the library's workspace
    x = values()
    assert allocations(gpu, lambda: run(x)) == [BYTES]
