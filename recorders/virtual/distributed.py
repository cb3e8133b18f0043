"""torch.distributed for one rank of any world: `init_process_group` joins a group of which only this process exists.

Rank and world size come from the call or from torchrun's environment. The world's size never changes the time: no
other process is started. DDP's check of the other ranks' shapes is skipped (it would compare values).
"""

import copy
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from .patching import Patches, patches
from .private import shape_verifier
from .process_group import SMALL_MESSAGE, VirtualGroup, peers
from .shadows import known_numbers, tell_numbers

if TYPE_CHECKING:
    from .session import Session

_BACKEND = "oomdoc_virtual"
TIMEOUT = timedelta(minutes=10)  # torch's default for NCCL; nothing ever waits
_HASH_STORE: Any = vars(dist)["HashStore"]
c10d: Any = torch.distributed.distributed_c10d
_original_helper: Callable[..., Any] = c10d._new_process_group_helper
_original_init: Callable[..., None] = c10d.init_process_group


def _make_group(options: Any, _: object = None) -> VirtualGroup:
    return VirtualGroup(options.group_rank, options.group_size, options.group_id)


def _helper(size: int, rank: int, ranks: list[int], backend: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
    """`_new_process_group_helper`: our group, under the name of the backend that the script asked for."""
    kwargs["backend_options"], kwargs["device_id"] = None, None
    group, own_store = _original_helper(size, rank, ranks, _BACKEND, store, *args, **kwargs)
    if isinstance(group, VirtualGroup):
        asked = "nccl" if str(backend) == "undefined" else backend
        c10d._world.pg_map[group] = (asked, own_store)
        group.connected = "nccl" not in str(asked)
    return group, own_store


def _from_environment(name: str) -> int:
    value = os.environ.get(name)
    if value is None:
        raise ValueError(
            f"Error initializing torch.distributed using env:// rendezvous: environment variable {name} expected, but "
            f"not set. Run one rank of many with: oomdoc run --nproc-per-node N SCRIPT"
        )
    return int(value)


def _init(session: "Session") -> Callable[..., None]:
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        pg_options: Any = None,
        device_id: Any = None,
        _ranks: Any = None,
    ) -> None:
        """A group of `world_size` ranks of which only this process exists."""
        rank = rank if rank >= 0 else _from_environment("RANK")
        world_size = world_size if world_size > 0 else _from_environment("WORLD_SIZE")
        session.rank, session.world_size = rank, world_size
        _original_init(
            backend=backend if backend is not None else "nccl",
            timeout=timeout or TIMEOUT,
            world_size=world_size,
            rank=rank,
            store=_HASH_STORE(),
            group_name=group_name,
        )
        if device_id is not None:
            index = device_id if isinstance(device_id, int) else device_id.index
            torch.cuda.set_device(index)

    return init_process_group


# ---- collectives of Python objects: the other ranks hold what this one does


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    for index in range(len(object_list)):
        object_list[index] = obj if index == dist.get_rank(group) else copy.deepcopy(obj)


def _gather_object(held: Patches) -> Callable[..., None]:
    def gather_object(
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: Any = None,
    ) -> None:
        _accept_partial_plans(held)
        if object_gather_list is not None:
            _all_gather_object(object_gather_list, obj, group)

    return gather_object


def _accept_partial_plans(held: Patches) -> None:
    """Distributed checkpoints: the shards of the ranks that are not there are not missed, and this one writes its own.

    The plans of the others are copies of the coordinator's own: it writes what it planned, and they write nothing.
    """
    planner = sys.modules.get("torch.distributed.checkpoint.default_planner")
    for name, accepting in (
        ("_validate_global_plan", lambda plan, metadata: []),
        ("dedup_save_plans", lambda plans, *_: [plans[0], *[replace(each, items=[]) for each in plans[1:]]]),
    ):
        if planner is not None and hasattr(planner, name):
            held.set(planner, name, accepting)


def _broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
    return None


def _scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *args: Any, **kwargs: Any
) -> None:
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(kwargs.get("group"))]


# ---- messages between two ranks


def _other(rank: int | None, group: Any, group_rank: int | None) -> int:
    """The global rank of the other side, given either way."""
    if rank is not None:
        return rank
    owner: Any = group or dist.GroupMember.WORLD
    return dist.get_global_rank(owner, group_rank or 0)


def _send_object_list(session: "Session") -> Callable[..., None]:
    def send_object_list(
        object_list: list[Any], dst: int | None = None, group: Any = None, device: Any = None,
        group_dst: int | None = None, **_: Any,
    ) -> None:  # fmt: skip
        session.mailbox.send(_other(dst, group, group_dst), pickle.dumps(object_list))

    return send_object_list


def _recv_object_list(session: "Session") -> Callable[..., int]:
    def recv_object_list(
        object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
        group_src: int | None = None, **_: Any,
    ) -> int:  # fmt: skip
        rank = _other(src, group, group_src)
        object_list[:] = pickle.loads(session.mailbox.receive(rank))  # noqa: S301  (the script's own, of another rank)
        return rank

    return recv_object_list


def _small(tensor: torch.Tensor) -> bool:
    """Integers that a script decides by; both sides know whether a tensor is such."""
    return not tensor.is_floating_point() and 0 < tensor.numel() <= SMALL_MESSAGE


def _send(session: "Session", original: Callable[..., Any]) -> Callable[..., Any]:
    def send(
        tensor: torch.Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
    ) -> None:
        original(tensor, dst=dst, group=group, tag=tag, group_dst=group_dst)
        if _small(tensor):
            session.mailbox.send(_other(dst, group, group_dst), json.dumps(known_numbers(tensor)).encode())

    return send


def _recv(session: "Session", original: Callable[..., Any]) -> Callable[..., Any]:
    def recv(
        tensor: torch.Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
    ) -> int:
        rank: int = original(tensor, src=src, group=group, tag=tag, group_src=group_src)
        if _small(tensor) and session.mailbox.runs_beside and (src is not None or group_src is not None):
            tell_numbers(tensor, json.loads(session.mailbox.receive(_other(src, group, group_src))))
        return rank

    return recv


def _spawn(session: "Session") -> Callable[..., None]:
    def spawn(fn: Any, args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, **_: Any) -> None:
        """`torch.multiprocessing.spawn`: rank 0 of `nprocs`, in this process."""
        if nprocs > 1:
            session.note(f"torch.multiprocessing.spawn: process 0 of {nprocs} was run, the others were not")
        fn(0, *args)

    return spawn


def _patch_c10d(held: Patches, session: "Session") -> None:
    names: dict[str, object] = {
        "init_process_group": _init(session),
        "_new_process_group_helper": _helper,
        "all_gather_object": _all_gather_object,
        "gather_object": _gather_object(held),
        "broadcast_object_list": _broadcast_object_list,
        "scatter_object_list": _scatter_object_list,
        "send_object_list": _send_object_list(session),
        "recv_object_list": _recv_object_list(session),
        "send": _send(session, c10d.send),
        "recv": _recv(session, c10d.recv),
        "_get_default_timeout": lambda backend: TIMEOUT,
        "is_nccl_available": lambda: True,
        "_store_based_barrier": lambda *_, **__: None,
    }
    held.swap_everywhere([(getattr(c10d, name), new) for name, new in names.items()])


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """torch.distributed, DDP's check and torch.multiprocessing.spawn for the time of the block."""
    import torch.distributed.utils
    import torch.multiprocessing
    import torch.nn.parallel.distributed

    if _BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])
    verify = shape_verifier()
    with patches() as held:
        held.set(peers, "session", session)
        _patch_c10d(held, session)
        held.swap_everywhere(
            [
                (verify, lambda group, tensors, logger=None: None),
                (vars(torch.multiprocessing)["spawn"], _spawn(session)),
            ]
        )
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
