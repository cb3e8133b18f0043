"""One rank of many: groups, collectives, FSDP2 and DTensor, with no other process."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from oomdoc.recorders.virtual.nccl import COMMUNICATOR_BYTES, KERNELS_BYTES
from oomdoc.recorders.virtual.session import Session, virtual_session
from torch import nn

from .conftest import A100_LIKE


@pytest.fixture
def rank_1_of_4(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    for name, value in {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with virtual_session(A100_LIKE) as session:
        yield session
    assert not dist.is_initialized()


def test_the_environment_s_rank_and_size(rank_1_of_4: Session) -> None:
    dist.init_process_group("nccl")
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (1, 4, "nccl")
    assert (rank_1_of_4.rank, rank_1_of_4.world_size) == (1, 4)
    assert dist.is_nccl_available()
    mine = dist.new_group([0, 1])
    assert (dist.get_rank(mine), dist.get_world_size(mine), dist.get_backend(mine)) == (1, 2, "nccl")
    assert dist.new_group([2, 3]) == dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()
    dist.destroy_process_group()


def test_nccl_takes_memory_beside_the_allocator(rank_1_of_4: Session) -> None:
    """At a group's first collective on the GPU, once; the library's kernels only once for all groups."""
    dist.init_process_group("nccl")
    x = torch.ones(1 << 20, device="cuda")
    dist.barrier()
    dist.all_reduce(torch.ones(4))
    before, context = torch.cuda.mem_get_info()[0], A100_LIKE.outside_bytes
    taken = []
    for group in (None, None, dist.new_group([0, 1]), dist.new_group([0, 1], backend="gloo")):
        dist.all_reduce(x, group=group)
        taken.append(before - torch.cuda.mem_get_info()[0])
    one, two = KERNELS_BYTES + COMMUNICATOR_BYTES, KERNELS_BYTES + 2 * COMMUNICATOR_BYTES
    assert taken == [one, one, two, two]
    recording = rank_1_of_4.snapshot().recording
    assert recording is not None
    assert recording.outside_bytes == context + two
    assert any("NCCL is taken to hold" in note for note in rank_1_of_4.notes)
    dist.destroy_process_group()


def test_without_an_environment_the_message_says_what_to_type(gpu: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="oomdoc run --nproc-per-node"):
        dist.init_process_group("nccl")


def test_other_ranks_hold_what_this_one_does(rank_1_of_4: Session) -> None:
    dist.init_process_group("gloo")
    x = torch.arange(4.0)
    dist.all_reduce(x)
    assert x.tolist() == [0, 4, 8, 12]
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert x.tolist() == [0, 4, 8, 12]
    parts = [torch.empty(2) for _ in range(4)]
    dist.all_gather(parts, torch.tensor([1.0, 2.0]))
    assert all(part.tolist() == [1, 2] for part in parts)
    shard = torch.empty(1)
    dist.reduce_scatter(shard, [torch.tensor([float(i)]) for i in range(4)])
    assert shard.item() == 4.0
    objects: list[object] = [None] * 4
    dist.all_gather_object(objects, {"loss": 1})
    assert objects == [{"loss": 1}] * 4


def test_collectives_on_the_gpu_take_what_nccl_s_wrapper_takes(rank_1_of_4: Session) -> None:
    dist.init_process_group("nccl")
    x = torch.zeros(1000, device="cuda")
    parts = [torch.zeros(1000, device="cuda") for _ in range(4)]
    whole = torch.zeros(4000, device="cuda")
    held = torch.cuda.memory_allocated()
    work = dist.all_reduce(x, async_op=True)
    assert work.get_future().wait()[0] is x
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(x, whole)
    assert torch.cuda.max_memory_allocated() == held
    dist.all_gather(parts, x)  # through one flat tensor of 4 x 4000 bytes
    assert torch.cuda.max_memory_allocated() == held + 16384
    assert torch.cuda.memory_allocated() == held


def padded(nbytes: int) -> int:
    return (nbytes + 511) // 512 * 512


def fsdp2_steps(world: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Three steps as rank 0 of `world`, each size checked; returns the operations of the last step."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    with virtual_session(A100_LIKE) as session:
        dist.init_process_group("nccl")
        width, depth = 8192, 2
        with torch.device("meta"):
            model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(depth)])
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        assert torch.cuda.memory_allocated() == 0
        model.to_empty(device="cuda")
        shard = padded(4 * width * width // world)
        assert torch.cuda.memory_allocated() == depth * shard
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            before = session.tracker.operations
            model(torch.zeros(4, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            operations = session.tracker.operations - before
        handles = sum(map(session.device.allocators[0].block_size, session.tracker.handles.values()))
        assert torch.cuda.memory_allocated() == 3 * depth * shard + handles  # parameters and both moments
        unsharded = 2 * width * width  # one layer gathered in bfloat16
        assert torch.cuda.max_memory_allocated() > 3 * depth * shard + unsharded
        return operations


def test_fsdp2_shards_are_4_bytes_times_n_over_w_and_the_world_costs_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fsdp2_steps(8, monkeypatch) == fsdp2_steps(4096, monkeypatch)


@pytest.mark.parametrize("fill", ["uniform_", "normal_", "bernoulli_", "exponential_", "zero_"])
def test_a_shard_made_on_meta_is_initialised_in_place(fill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`to_empty` and `reset_parameters`, as large models are made: no byte beside the shards."""
    from torch.distributed.fsdp import fully_shard

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with virtual_session(A100_LIKE):
        dist.init_process_group("nccl")
        with torch.device("meta"):
            layer = nn.Linear(512, 512, bias=False)
        fully_shard(layer)
        layer.to_empty(device="cuda")
        assert torch.cuda.memory_allocated() == 512 * 512  # a quarter of 4 bytes each
        with torch.no_grad():
            layer.weight.uniform_()  # the ranks agree on a seed once, through a small tensor
            torch.cuda.reset_peak_memory_stats()
            filled = getattr(layer.weight, fill)()
        assert filled is layer.weight
        assert torch.cuda.max_memory_allocated() == 512 * 512
