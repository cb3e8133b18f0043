"""A virtual tensor looks, moves and reads as one on a GPU does."""

import copy
import io
import pickle

import pytest
import torch
from oomdoc.recorders.virtual.session import Session, virtual_session
from torch import nn

from .conftest import A100_LIKE


def test_every_way_of_asking_says_cuda(gpu: Session) -> None:
    x = torch.empty(2, 3, device="cuda")
    assert x.device == torch.device("cuda", 0)
    assert (x.is_cuda, x.is_cpu, x.is_meta, x.get_device()) == (True, False, False, 0)
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.untyped_storage().device == torch.device("cuda", 0)
    assert nn.Parameter(x).device.type == "cuda"
    assert x.data_ptr() == x.untyped_storage().data_ptr() > 0
    assert x[1].data_ptr() - x.data_ptr() == 12
    assert "device='cuda:0'" in repr(x)


def test_true_meta_stays_meta(gpu: Session) -> None:
    with torch.device("meta"):
        layer = nn.Linear(1000, 1000)
    assert layer.weight.is_meta
    assert torch.zeros_like(torch.ones(3), device="meta").device.type == "meta"
    assert torch.cuda.memory_allocated() == 0
    layer.to_empty(device="cuda")
    assert layer.weight.is_cuda
    assert torch.cuda.memory_allocated() == 4_000_256 + 4096  # weight and bias, each a multiple of 512


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)])
def test_factories_take_any_spelling_of_the_device(gpu: Session, device: object) -> None:
    made = [
        torch.zeros(3, device=device),
        torch.tensor([1, 2], device=device),
        torch.as_tensor([1, 2], device=device),
        torch.asarray([1.0], device=device),
        torch.rand_like(torch.ones(2), device=device),
        torch.ones(2).new_zeros(3, device=device),
        torch.ones(2).new_tensor([3.0], device=device),
        torch.ones(2).to(device),
        torch.ones(2).to(device=device, dtype=torch.float16),
        nn.Linear(2, 2, device=device).weight,
        nn.Linear(2, 2).to(device).weight,
        nn.Linear(2, 2).to(device=device, dtype=torch.float16).weight,
        nn.Linear(2, 2).to(device, torch.float16).weight,
    ]
    assert all(each.is_cuda for each in made)


def test_data_given_to_a_factory_is_allocated_once(gpu: Session) -> None:
    x = torch.tensor([[1.0] * 256] * 4, device="cuda")
    assert (x.shape, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == ((4, 256), 4096, 4096)
    assert torch.as_tensor(x) is x
    assert torch.tensor(x.detach()).data_ptr() != x.data_ptr()


def test_a_tensor_of_numbers_on_the_gpu_reads_them(gpu: Session) -> None:
    """As on a GPU, each is copied to the host; the type is theirs, also within a context that names a device."""
    numbers = [torch.tensor(1.5, device="cuda"), torch.tensor(2.5, device="cuda")]
    with torch.device("cuda"):
        assert torch.tensor(numbers).is_cuda
    made = torch.tensor([numbers, numbers])
    assert made.device.type == "cpu"
    assert made.tolist() == [[1.5, 2.5]] * 2
    assert made.dtype is torch.float32


def test_default_device_and_device_context(gpu: Session) -> None:
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
        assert torch.tensor([1.0]).is_cuda
        assert nn.Linear(2, 2).bias.is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).is_cuda
        assert torch.tensor(1).is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda


def test_moving_to_where_it_is_allocates_nothing(gpu: Session) -> None:
    x = torch.zeros(1000, device="cuda")
    assert all(x.to(device) is x for device in ("cuda", 0, "cuda:0", x.device))
    assert x.cuda() is x
    assert x.to(x) is x
    assert torch.cuda.max_memory_allocated() == 4096
    assert x.to("cuda", copy=True) is not x
    assert torch.cuda.max_memory_allocated() == 8192


def test_gradients_flow_back_to_the_host(gpu: Session) -> None:
    weight = torch.ones(4, requires_grad=True)
    (weight.to("cuda") * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.device.type == "cpu"


def test_a_parameter_keeps_its_identity_when_its_module_moves(gpu: Session) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    model.tied = model[0].weight  # type: ignore[assignment]
    weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model.cuda()
    assert model[0].weight is weight
    assert weight.is_cuda
    assert model.tied is weight
    assert isinstance(weight, nn.Parameter)
    assert all(p.is_cuda for group in optimizer.param_groups for p in group["params"])
    parameters = 4 * (64 * 64) + 3 * 512
    buffers = 2 * 512 + 512
    assert torch.cuda.memory_allocated() == parameters + buffers


def test_moving_with_a_gradient_moves_the_gradient(gpu: Session) -> None:
    layer = nn.Linear(64, 64, bias=False)
    layer(torch.ones(1, 64)).sum().backward()
    layer.cuda()
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_cuda
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 2 * 4 * 64 * 64


def test_hooks_survive_a_move(gpu: Session) -> None:
    layer = nn.Linear(4, 4)
    seen: list[torch.device] = []
    layer.weight.register_hook(lambda grad: seen.append(grad.device))
    layer.cuda()
    layer(torch.ones(1, 4, device="cuda")).sum().backward()
    assert seen == [torch.device("cuda", 0)]


def test_data_assignment_across_devices(gpu: Session) -> None:
    layer = nn.Linear(4, 4)
    layer.weight.data = layer.weight.data.cuda()
    assert layer.weight.is_cuda
    assert layer.weight.requires_grad


def test_numpy_and_exchange_refuse_as_cuda_does(gpu: Session) -> None:
    x = torch.zeros(3, device="cuda")
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(RuntimeError, match="virtual GPU has no values"):
        x.__dlpack__()


def test_deepcopy_allocates_each_storage_once(gpu: Session) -> None:
    model = nn.Linear(64, 64, device="cuda")
    model.tied = model.weight
    before = torch.cuda.memory_allocated()
    twin = copy.deepcopy(model)
    assert twin.tied is twin.weight
    assert twin.weight.is_cuda
    assert torch.cuda.memory_allocated() == 2 * before


def test_save_and_load_keep_device_and_size(gpu: Session) -> None:
    model = nn.Linear(64, 64, device="cuda")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    one = torch.cuda.memory_allocated()
    for where, device in ((None, "cuda"), ("cpu", "cpu"), ("cuda:0", "cuda"), ({"cuda:0": "cpu"}, "cpu")):
        file.seek(0)
        state = torch.load(file, map_location=where)
        assert state["weight"].device.type == device
        assert state["weight"].shape == (64, 64)
        assert torch.cuda.memory_allocated() == (2 * one if device == "cuda" else one)
        del state


def test_storage_resize_frees_and_takes(gpu: Session) -> None:
    x = torch.zeros(1000, device="cuda")
    storage = x.untyped_storage()
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == 0
    storage.resize_(4000)
    assert torch.cuda.memory_allocated() == 4096


def test_legacy_kinds_and_pickled_devices(gpu: Session) -> None:
    x = torch.ones(2)
    assert x.type("torch.cuda.HalfTensor").dtype == torch.float16
    assert x.type("torch.cuda.HalfTensor").is_cuda
    assert x.cuda().type(torch.float64).is_cuda
    assert pickle.loads(pickle.dumps(torch.device(1))) == torch.device("cuda", 1)  # noqa: S301


def test_old_tensor_types(gpu: Session) -> None:
    x = torch.cuda.FloatTensor(2, 3)
    assert (x.shape, x.dtype, x.is_cuda) == ((2, 3), torch.float32, True)
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
    assert torch.ones(2).type(torch.cuda.HalfTensor).dtype == torch.float16
    torch.set_default_tensor_type("torch.cuda.HalfTensor")
    try:
        assert (torch.ones(2).dtype, torch.ones(2).is_cuda) == (torch.float16, True)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_a_function_of_the_tensor_s_own_class(gpu: Session) -> None:
    class Logged(torch.Tensor):
        called: list[str] = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            cls.called.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(2).as_subclass(Logged)
    moved = x.to("cuda")
    assert isinstance(moved, Logged)
    assert moved.is_cuda
    assert moved.to("cuda") is moved


def test_two_devices_are_counted_apart() -> None:
    with virtual_session(A100_LIKE, device_count=2):
        x = torch.zeros(1000, device="cuda:1")
        assert (torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)) == (0, 4096)
        with torch.cuda.device(1):
            assert torch.zeros(1, device="cuda").get_device() == 1
        assert x.to("cuda:0").get_device() == 0


def test_the_process_is_as_before() -> None:
    import torch._dynamo  # what operations import on first use is no change of ours

    def held() -> list[dict[str, int]]:
        return [{k: id(v) for k, v in vars(o).items()} for o in (torch, torch.cuda, torch.Tensor, torch._C)]

    with virtual_session(A100_LIKE):  # once, for what torch caches on first use (__slotnames__)
        copy.deepcopy(nn.Linear(2, 2).cuda())
    before = held()
    with virtual_session(A100_LIKE):
        copy.deepcopy(nn.Linear(2, 2).cuda())
        torch.cuda.synchronize()
    assert held() == before
    assert not torch.cuda.is_available()
    assert torch.device("cpu").type == "cpu"
    assert isinstance(torch.default_generator, torch.Generator)


def test_grouping_by_device_sees_the_gpu(gpu: Session) -> None:
    """Optimizers and clipping choose their foreach kernels by the device of each group."""
    from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype as group

    on_gpu = [torch.ones(3, device="cuda"), torch.ones(2, device="cuda")]
    groups = group([[*on_gpu, torch.ones(1)], [torch.ones(1), torch.ones(2), torch.ones(3)]], with_indices=True)
    found = {device.type: ([len(each) for each in lists], indices) for (device, _), (lists, indices) in groups.items()}
    assert found == {"cuda": ([2, 2], [0, 1]), "cpu": ([1, 1], [2])}


def test_clipping_takes_the_foreach_kernels(gpu: Session) -> None:
    parameters = [torch.nn.Parameter(torch.ones(8, device="cuda")) for _ in range(3)]
    for each in parameters:
        each.grad = torch.ones_like(each)
    for foreach in (True, None):
        before = gpu.tracker.operations
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
        operations = gpu.tracker.operations - before
        assert operations < 12  # one norm and one product of all, not of each
