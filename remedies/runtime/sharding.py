"""fsdp at run time: `fully_shard` on the model in place, before its optimizer is built, and a share of each batch.

Every rank runs the whole script. Rank 0's weights are sent to all, as DDP does; each rank works on its part of every
batch that a DataLoader yields, so the effective batch is that of the script.
"""

import os
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from .accumulation import loss_weight
from .application import Application, CannotApplyError
from .modules import of_classes, repeated_blocks
from .session import Session


class Fsdp(Application):
    """`wrap: [ClassName, ...]` (default: the model's repeated blocks), `reshard_after_forward: bool`."""

    name = "fsdp"
    options = frozenset({"wrap", "reshard_after_forward"})

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        super().__init__(session, options)
        self.wrap: tuple[str, ...] = tuple(options.get("wrap") or ())
        self.reshard = bool(options.get("reshard_after_forward", True))
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._sharded: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._mesh: DeviceMesh | None = None
        self._own_group = False
        self._environment: dict[str, str | None] = {}
        self._applied = False

    def before_script(self) -> None:
        if self.session.world_size < 2:
            raise CannotApplyError(
                "fsdp needs at least two ranks: give --nproc-per-node (and --nnodes), or leave fsdp out of oomdoc.yaml."
            )
        if not dist.is_initialized():
            self._init_process_group()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.session.rank_share = (rank, ranks)
        self._tell_accelerate()
        torch.manual_seed(self._shared_seed())

    def _tell_accelerate(self) -> None:
        """The environment that `accelerate launch` makes for FSDP2: a script whose model accelerate (or the Hugging
        Face Trainer) prepares gets it from there. Tried with accelerate 1.15."""
        variables = {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "2",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_RESHARD_AFTER_FORWARD": str(self.reshard).lower(),
            "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
        }
        if self.wrap:
            variables["FSDP_TRANSFORMER_CLS_TO_WRAP"] = ",".join(self.wrap)
        self._environment = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def _accelerate_shards(self) -> bool:
        """Whether accelerate has taken that up: it shards the model that it prepares."""
        state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
        shared = state._shared_state if state is not None else {}
        return str(getattr(shared.get("distributed_type"), "value", None)) == "FSDP"

    def _init_process_group(self) -> None:
        if self.session.device_type == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if self.session.device_type == "cuda" else "gloo")
        self._own_group = True

    def _shared_seed(self) -> int:
        """One seed for all ranks, so that they draw the same batches where the script sets none."""
        seed = torch.tensor([torch.initial_seed() % (1 << 62)], device=self._device())
        dist.broadcast(seed, src=0)
        return int(seed.item())

    def _device(self) -> torch.device:
        if self.session.device_type == "cpu":
            return torch.device("cpu")
        return torch.device(self.session.device_type, torch.cuda.current_device())

    def rewrite_parameters(self, parameters: Any) -> Any:
        """Shard the models that own these parameters, and put the shards in their place."""
        entries = list(parameters) if not isinstance(parameters, torch.Tensor) else [parameters]
        wanted = {id(p) for entry in entries for p in _tensors_of(entry)}
        for model in self.session.registry.tops():
            if model not in self._models and any(id(p) in wanted for p in model.parameters()):
                self._shard(model)
        return [_replaced(entry, self._sharded) for entry in entries]

    def root_called(self, module: torch.nn.Module) -> None:
        model = self.session.registry.top_of(module)
        if model not in self._models and torch.is_grad_enabled():
            self._shard(model)

    def _shard(self, model: torch.nn.Module) -> None:
        if self._accelerate_shards():
            self._models.add(model)
            self._applied = True
            self.session.note("accelerate shards the model (FSDP2) and gives each rank batches of its own")
            return
        self._refuse_wrapped(model)
        self._models.add(model)
        self._applied = True
        if self._mesh is None:
            self._mesh = init_device_mesh(self.session.device_type, (dist.get_world_size(),))
        blocks = of_classes(model, self.wrap or repeated_blocks(model))
        if self.wrap and not blocks:
            raise CannotApplyError(
                f"fsdp found no module of class {', '.join(self.wrap)}; repeated blocks here: "
                f"{', '.join(repeated_blocks(model)) or 'none'}. Name the classes under wrap: in oomdoc.yaml."
            )
        self._make_contiguous(model)
        device = self._device()
        model.to(device)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        for block in blocks:
            if block is not model:
                self._fully_shard(block, reshard_after_forward=self.reshard)
        # the root's own parameters are needed again at once in backward: torch's default keeps them
        self._fully_shard(model, reshard_after_forward=None)

    def _make_contiguous(self, model: torch.nn.Module) -> None:
        """FSDP shards contiguous parameters only. Their values stay; an operation that wants another memory format, as
        a convolution of channels_last inputs does, makes it of them when it runs."""
        strided = [name for name, parameter in model.named_parameters() if not parameter.is_contiguous()]
        for name in strided:
            parameter = model.get_parameter(name)
            parameter.data = parameter.data.contiguous()
        if strided:
            self.session.note(
                f"FSDP shards contiguous parameters only: {strided[0]}"
                + (f" and {len(strided) - 1} more were" if len(strided) > 1 else " was")
                + " made contiguous (channels_last goes on for the activations)"
            )

    def _fully_shard(self, module: torch.nn.Module, *, reshard_after_forward: bool | None) -> None:
        """Shard one unit, and let go of its whole parameters before the next: the peak is one unit above the model."""
        before: dict[str, weakref.ref[torch.Tensor]] = {
            name: weakref.ref(p) for name, p in module.named_parameters(remove_duplicate=False)
        }
        fully_shard(module, mesh=self._mesh, reshard_after_forward=reshard_after_forward)
        after = dict(module.named_parameters(remove_duplicate=False))
        for name, reference in before.items():
            old = reference()
            if old is not None and old is not after[name]:
                self._sharded[id(old)] = (reference, after[name])
                old.data = old.data.new_empty(0)  # a list that the script keeps must not hold the whole model

    def _refuse_wrapped(self, model: torch.nn.Module) -> None:
        state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
        if state is not None and state._shared_state:
            raise CannotApplyError(
                "accelerate (or the Hugging Face Trainer) distributes this model: write fsdp into its own config, "
                "`oomdoc fix --framework hf`, and leave fsdp out of oomdoc.yaml."
            )
        names = {type(module).__name__ for module in model.modules()}
        wrapped = names & {"DistributedDataParallel", "FullyShardedDataParallel"}
        wrapped |= {"fully_shard"} if any(n.startswith("FSDP") and n != "FSDPModule" for n in names) else set()
        if wrapped:
            raise CannotApplyError(
                f"the script already distributes its model with {', '.join(sorted(wrapped))}: change it there, and "
                "leave fsdp out of oomdoc.yaml."
            )

    def gradient_scale(self, loss: torch.Tensor) -> float | None:
        """The weight of this rank's share, unless gradient accumulation already weighs the pieces."""
        if any(application.name == "gradient-accumulation" for application in self.session.applications):
            return None
        if self.session.batches.current is None and not self._accelerate_shards():
            self.session.note(
                "no DataLoader was cut: every rank works on the batch that the script makes, so the effective batch "
                f"is {self.session.world_size} times the script's"
            )
            return None
        weight = loss_weight(self.session, loss)
        return None if weight == 1.0 else weight

    def undo(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._own_group and dist.is_initialized():
            dist.destroy_process_group()

    def unapplied(self) -> str | None:
        return None if self._applied else "no optimizer was built and no model was called with gradients enabled"


def _tensors_of(entry: Any) -> list[torch.Tensor]:
    """The parameters of one entry of an optimizer's argument: a tensor, (name, tensor), or a group."""
    if isinstance(entry, torch.Tensor):
        return [entry]
    if isinstance(entry, Mapping):
        inner = entry["params"]
        if isinstance(inner, torch.Tensor):
            return [inner]
        if not isinstance(inner, (list, tuple)):
            raise CannotApplyError(
                "an optimizer group's params is a one-time iterator, which oomdoc would use up. "
                "Pass a list there: list(model.parameters())."
            )
        return [p for each in inner for p in _tensors_of(each)]
    if isinstance(entry, tuple) and len(entry) == 2:
        return [entry[1]]
    return []


def _replaced(entry: Any, sharded: Mapping[int, tuple[Any, torch.Tensor]]) -> Any:
    if isinstance(entry, torch.Tensor):
        old, new = sharded.get(id(entry), (None, None))
        return new if new is not None and old is not None and old() is entry else entry
    if isinstance(entry, Mapping):
        inner = entry["params"]
        if isinstance(inner, torch.Tensor):
            return {**entry, "params": _replaced(inner, sharded)}
        return {**entry, "params": [_replaced(each, sharded) for each in inner]}
    if isinstance(entry, tuple) and len(entry) == 2:
        return (entry[0], _replaced(entry[1], sharded))
    return entry
