"""Big float tensors on the host are virtual; small and integer ones are real; copies know where they go."""

import pytest
import torch
from oomdoc.recorders.errors import UnsupportedOperationError
from oomdoc.recorders.virtual import storages
from oomdoc.recorders.virtual.host import BIG_ELEMENTS
from oomdoc.recorders.virtual.session import Session
from oomdoc.recorders.virtual.storages import Kind

CPU = torch.device("cpu")


def allocated(session: Session) -> int:
    return session.device.allocators[0].allocated_bytes


@pytest.mark.parametrize("make", [torch.empty, torch.zeros, torch.randn, torch.rand, torch.ones])
def test_a_big_float_factory_is_virtual_and_says_cpu(gpu: Session, make: object) -> None:
    x = make(BIG_ELEMENTS)  # type: ignore[operator]
    assert storages.kind_of(x) is Kind.HOST
    assert x.device == CPU
    assert allocated(gpu) == 0


def test_small_and_integer_tensors_stay_real(gpu: Session) -> None:
    assert storages.kind_of(torch.ones(BIG_ELEMENTS - 1)) is None
    assert storages.kind_of(torch.arange(2 * BIG_ELEMENTS)) is None
    assert storages.kind_of(torch.zeros(2 * BIG_ELEMENTS, dtype=torch.int64)) is None


def test_results_of_virtual_host_tensors_stay_on_the_host(gpu: Session) -> None:
    big = torch.randn(512, 512)
    result = big @ torch.ones(512, 3) + torch.ones(3)
    assert (result.device, storages.kind_of(result)) == (CPU, Kind.HOST)
    assert allocated(gpu) == 0


def test_a_real_tensor_keeps_its_values_when_a_virtual_one_is_added(gpu: Session) -> None:
    real = torch.ones(1000, 2)
    real += torch.randn(1000, 1000)[:, :2]
    assert real.sum() == 2000


def test_moving_a_virtual_host_tensor_allocates_its_bytes(gpu: Session) -> None:
    moved = torch.randn(512, 512).t().to("cuda")
    assert storages.is_virtual(moved)
    assert moved.stride() == (1, 512)
    assert allocated(gpu) == 512 * 512 * 4


def test_a_model_built_on_the_host_costs_its_parameters_once_moved(gpu: Session) -> None:
    model = torch.nn.Linear(1024, 1024)
    assert allocated(gpu) == 0
    model.cuda()
    assert allocated(gpu) == 4 * (1024 * 1024 + 1024)
    assert next(model.parameters()).is_cuda


def test_values_do_not_come_back_from_the_gpu_but_shapes_do(gpu: Session) -> None:
    small = torch.ones(3, device="cuda").cpu()
    assert storages.kind_of(small) is None
    assert small.shape == (3,)
    big = torch.ones(BIG_ELEMENTS, device="cuda").cpu()
    assert (storages.kind_of(big), big.device) == (Kind.HOST, CPU)


def test_a_copy_into_a_real_tensor_keeps_it_real(gpu: Session) -> None:
    real = torch.full((3,), 7.0)
    real.copy_(torch.ones(3, device="cuda"))
    assert storages.kind_of(real) is None


def test_like_factories_with_a_host_device_are_on_the_host(gpu: Session) -> None:
    x = torch.empty(10, device="cuda")
    y = torch.zeros_like(x, device="cpu")
    assert storages.kind_of(y) is None
    assert y.sum() == 0


@pytest.mark.parametrize(
    "mix",
    [
        lambda cuda, host: cuda + host,
        lambda cuda, host: torch.mm(cuda, host),
        lambda cuda, host: torch.nn.functional.linear(cuda, host),
        lambda cuda, host: torch.cat([cuda, cuda]) * host[0],
        lambda cuda, host: torch.where(cuda > 0, cuda, host),
        lambda cuda, host: torch.cat([cuda, host]),
        lambda cuda, host: torch.stack([cuda, host]),
    ],
)
def test_operands_on_two_devices_are_the_scripts_error_in_cudas_words(gpu: Session, mix: object) -> None:
    cuda = torch.empty(4, 4, device="cuda")
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        mix(cuda, torch.ones(4, 4))  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        torch.empty(512, 512, device="cuda") + torch.randn(512, 512)


def test_a_host_scalar_may_come_along(gpu: Session) -> None:
    x = torch.empty(4, device="cuda") * torch.tensor(2.0) + torch.tensor(1)
    assert storages.is_virtual(x)


def test_host_indices_may_index_the_gpu(gpu: Session) -> None:
    x = torch.empty(4, 2, device="cuda")
    assert x[torch.tensor([0, 1])].shape == (2, 2)


def test_an_unknown_operation_stops_with_its_name_and_the_line(gpu: Session) -> None:
    library = torch.library.Library("oomdoc_test", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    x = torch.empty(4, device="cuda")
    with pytest.raises(UnsupportedOperationError, match="oomdoc_test::mystery") as caught:
        torch.ops.oomdoc_test.mystery(x)
    assert caught.value.file == __file__
    assert "register_fake" in caught.value.hint


def test_numpy_of_a_virtual_host_tensor_is_an_array_of_its_shape(gpu: Session) -> None:
    array = torch.randn(512, 1024).numpy()
    assert (array.shape, array.dtype.name) == ((512, 1024), "float32")


def test_a_loaders_workers_sample_from_a_virtual_host_tensor(gpu: Session) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(1000, 3, 16, 16), torch.arange(1000))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    x, y = next(iter(loader))
    assert x.shape == (8, 3, 16, 16)
    assert y.tolist() == list(range(8))
    assert x.cuda().is_cuda


def test_an_operation_that_needs_values_gets_zeros_and_the_report_says_so(gpu: Session) -> None:
    assert torch.nonzero(torch.randn(512, 1024)).shape == (0, 2)
    assert any("aten::nonzero" in note for note in gpu.notes)
