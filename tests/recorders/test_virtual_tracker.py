"""The tracker allocates what CUDA would, and gives it back when the last tensor dies."""

import gc

import pytest
import torch
from oomdoc.recorders.virtual import storages
from oomdoc.recorders.virtual.device import format_size
from oomdoc.recorders.virtual.session import Session, virtual_session
from oomdoc.recorders.virtual.storages import Kind
from oomdoc.snapshots.model import Action

from .conftest import A100_LIKE


def allocated(session: Session) -> int:
    return session.device.allocators[0].allocated_bytes


def test_a_cuda_factory_takes_its_bytes_rounded_to_512(gpu: Session) -> None:
    x = torch.empty(1000, device="cuda")
    assert allocated(gpu) == 4096
    assert storages.is_virtual(x)
    assert storages.device_of(x) == torch.device("cuda", 0)


def test_the_block_lives_as_long_as_the_last_view(gpu: Session) -> None:
    x = torch.empty(1000, device="cuda")
    view = x[10:20].detach()
    del x
    assert allocated(gpu) == 4096
    del view
    assert allocated(gpu) == 0


def test_a_reference_cycle_holds_its_tensor_until_python_collects_it(gpu: Session) -> None:
    class Node:
        pass

    node = Node()
    node.me = node  # type: ignore[attr-defined]
    node.tensor = torch.empty(1000, device="cuda")  # type: ignore[attr-defined]
    del node
    assert allocated(gpu) == 4096
    gc.collect()
    assert allocated(gpu) == 0


def test_saved_activations_die_with_the_graph(gpu: Session) -> None:
    layer = torch.nn.Linear(256, 256, bias=False, device="cuda")
    x = torch.empty(64, 256, device="cuda", requires_grad=True)
    parameters_and_input = allocated(gpu)
    hidden = torch.relu(layer(x))
    loss = hidden.sum()
    del hidden
    assert allocated(gpu) > parameters_and_input
    loss.backward()
    del loss
    handles = sum(gpu.device.allocators[0].block_size(a) for a in gpu.tracker.handles.values())
    gradients = 4 * 256 * 256 + 4 * 64 * 256
    assert allocated(gpu) - handles == parameters_and_input + gradients


def test_cpu_tensors_stay_real(gpu: Session) -> None:
    x = torch.arange(4.0) + 1
    assert x.tolist() == [1, 2, 3, 4]
    assert storages.kind_of(x) is None
    assert allocated(gpu) == 0


def test_the_users_own_meta_tensors_cost_nothing(gpu: Session) -> None:
    with storages.asking_for_meta():
        x = torch.empty(1000, device="meta")
    y = x * 2
    assert storages.kind_of(y) is Kind.META
    assert storages.device_of(y) == torch.device("meta")
    assert allocated(gpu) == 0


def test_an_explicit_cuda_device_wins_over_meta_operands(gpu: Session) -> None:
    with storages.asking_for_meta():
        x = torch.empty(1000, device="meta")
    y = torch.empty_like(x, device="cuda")
    assert storages.is_virtual(y)
    assert allocated(gpu) == 4096


def test_zero_bytes_reach_no_allocator(gpu: Session) -> None:
    x = torch.empty(0, device="cuda")
    assert storages.is_virtual(x)
    assert len(gpu.device.logs[0]) == 0


def test_out_of_memory_is_pytorchs_own(gpu: Session) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 64\.00 GiB\. GPU 0 has a"):
        torch.empty(1 << 34, device="cuda")
    assert gpu.device.logs[0].action[-1] == Action.OOM
    assert allocated(gpu) == 0
    assert torch.empty(10, device="cuda").shape == (10,)  # the process goes on, as on CUDA


def test_frames_of_an_event_are_the_users_innermost_first(gpu: Session) -> None:
    def inner() -> torch.Tensor:
        return torch.empty(1000, device="cuda")

    kept = inner()
    stacks = gpu.device.stacks.freeze()
    frames = stacks.of(gpu.device.logs[0].stack[-1])
    assert kept is not None
    assert [frame.name for frame in frames[:2]] == ["inner", "test_frames_of_an_event_are_the_users_innermost_first"]
    assert frames[0].line == inner.__code__.co_firstlineno + 1


def test_composites_are_opened_in_inference_mode(gpu: Session) -> None:
    weight = torch.empty(64, 32, device="cuda")
    x = torch.empty(4, 8, 32, device="cuda")
    seen: list[str] = []
    gpu.tracker.after = lambda func, args, kwargs, result: seen.append(func.name())
    with torch.inference_mode():
        torch.nn.functional.linear(x, weight)
    assert "aten::mm" in seen
    assert "aten::linear" not in seen


def test_leaving_the_session_leaves_plain_torch() -> None:
    with virtual_session(A100_LIKE):
        kept = torch.empty(10, device="cuda")
    assert torch.empty(10, device="meta").device.type == "meta"
    assert not storages.RECORDS
    assert kept.shape == (10,)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (512, "512 bytes"),
        (1536, "1.50 KiB"),
        (20 << 20, "20.00 MiB"),
        (1002 << 20, "1002.00 MiB"),
        (3 << 30, "3.00 GiB"),
    ],
)
def test_sizes_are_printed_as_c10_does(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


def test_operators_that_take_functions_run_eagerly_and_are_seen(gpu: Session) -> None:
    from torch._prims.rng_prims import run_dtensor_rng_op

    x = torch.empty(1000, device="cuda")
    run_dtensor_rng_op(0, 4, torch.ops.aten.normal_.default, x, 0.0, 1.0)
    out = run_dtensor_rng_op(0, 4, torch.ops.aten.rand_like.default, x)
    assert storages.is_virtual(out)
    assert allocated(gpu) == 2 * 4096
