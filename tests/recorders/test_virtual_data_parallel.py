"""torch.nn.DataParallel: on one virtual GPU as on a real one, on several a clear stop."""

import pytest
import torch
from oomdoc.recorders.errors import UnsupportedOperationError
from oomdoc.recorders.virtual.session import Session, virtual_session
from torch.nn.parallel import comm

from .conftest import A100_LIKE


def test_one_device_trains_and_copies_only_what_lies_elsewhere(gpu: Session) -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(256, 128)).cuda()
    on_gpu = torch.ones(32, 256, device="cuda")
    weights = torch.cuda.memory_allocated()
    model(on_gpu).sum().backward()
    assert model.module.weight.grad is not None
    with torch.no_grad():
        model(on_gpu)
        before = torch.cuda.memory_allocated()
        out = model(on_gpu)
        assert torch.cuda.memory_allocated() - before == 32 * 128 * 4  # the output and no copy of the input
        del out
        out = model(torch.ones(32, 256))
        assert out.device == torch.device("cuda", 0)
    assert weights < torch.cuda.memory_allocated()


def test_the_functions_of_comm_on_one_device(gpu: Session) -> None:
    x = torch.ones(8, 4, device="cuda")
    [chunk] = comm.scatter(x, [0])
    assert chunk.data_ptr() == x.data_ptr()
    assert comm.scatter(torch.ones(8, 4), [0])[0].is_cuda
    assert comm.gather([x], 0, 0).shape == (8, 4)
    assert comm.gather([x], 0, "cpu").device.type == "cpu"
    [[same]] = comm.broadcast_coalesced([x], [0])
    assert same.data_ptr() == x.data_ptr()
    assert comm.broadcast(x, [0])[0].shape == (8, 4)


def test_several_devices_stop_with_what_to_do() -> None:
    own = getattr(torch._C, "_scatter", None)  # a CPU build has none
    with virtual_session(A100_LIKE, device_count=2):
        model = torch.nn.DataParallel(torch.nn.Linear(16, 16)).cuda()
        with pytest.raises(UnsupportedOperationError, match="DistributedDataParallel") as stopped:
            model(torch.ones(8, 16, device="cuda"))
    assert stopped.value.file.endswith("test_virtual_data_parallel.py")
    assert getattr(torch._C, "_scatter", None) is own
