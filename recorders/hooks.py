"""What torch's global hooks know: step and phase, the module that runs, the role of each tensor.

Used by the virtual GPU and by the CUDA recorder alike; touches torch through its public global hooks only, and the
script's objects through weak references. The recorder gives a `Sink`: it says where in its events we are, and keeps
the roles.

A step ends when the next forward or backward begins after an optimizer step (so that zero_grad at its end belongs to
it). Where the script has no torch optimizer but its own, a backward pass counts as the step. Phases are setup (before
the first forward), forward, backward, optimizer, other.
"""

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch.nn.modules import module as _module
from torch.optim import optimizer as _optimizer

from ..diagnosers.interface import CATEGORIES, Category
from .wrappers import wrapped_by

SETUP, FORWARD, BACKWARD, OPTIMIZER, OTHER = "setup", "forward", "backward", "optimizer", "other"
PARAMETER, BUFFER, GRADIENT, STATE, INPUT = (
    CATEGORIES.index(each.value)
    for each in (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.INPUT)
)

Kind = TypeVar("Kind", torch.nn.Module, torch.optim.Optimizer)


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # no wrapper of others


class Sink(Protocol):
    """What the hooks tell the recorder."""

    def changed(self, phase: str, step: int, module: int) -> None:
        """The job entered a phase, a step, or a module (index into `Hooks.modules`, -1 = none)."""
        ...

    def mark(self, tensor: torch.Tensor, category: int) -> None:
        """The tensor's allocation has this role, an index into `diagnosers.interface.CATEGORIES`."""
        ...

    def mark_all(self, tensors: Iterable[torch.Tensor], category: int) -> None:
        """The same of many, most of which were marked in the step before."""
        ...


class StopAfterSteps(BaseException):
    """Enough steps are recorded. Not an Exception: the script's own `except Exception` must not swallow it."""


class Hooks:
    """State of one run. `install()` is a context manager."""

    def __init__(self, sink: Sink, steps: int | None = None) -> None:
        self.sink = sink
        self.steps = steps  # stop when this many are done; None = never
        self.step = 1
        self.phase = SETUP
        self.modules: list[str] = []
        self.running: list[int] = []  # module ids from the outermost to the innermost that runs
        self.before_stop: Callable[[], None] | None = None
        self.on_change: Callable[[], None] | None = None
        self.on_step: Callable[[int], None] | None = None  # told the number of the step that is complete
        self.requests = 0  # outermost forwards so far: what stands for steps where nothing is trained
        self.roots: list[weakref.ref[torch.nn.Module]] = []
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._ids: dict[str, int] = {}
        self._paths: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}  # id(module) -> (it, module id)
        self._in_step = 0
        self.autocast: str | None = None  # dtype of torch.autocast("cuda") in the last forward of a root
        self.recomputes = False  # a module ran within backward: activation checkpointing is in use
        self.backwards_per_step = 0  # outermost backward passes of the last step that is complete
        self._backwards_now = 0
        self._backwards = 0  # nested engine runs
        self._outside_backward = 0  # len(running) when the outermost engine run began
        self._stepped = False  # an optimizer step was made since the last forward
        self._own_optimizer: bool | None = None  # the script has no torch optimizer; None = not known yet

    @contextmanager
    def install(self) -> Iterator["Hooks"]:
        handles = [
            _module.register_module_forward_pre_hook(self._enter),
            _module.register_module_forward_hook(self._leave, always_call=True),
            _module.register_module_parameter_registration_hook(self._parameter_registered),
            _optimizer.register_optimizer_step_pre_hook(self._before_step),
            _optimizer.register_optimizer_step_post_hook(self._after_step),
        ]
        engine: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
        owners = [owner for owner in (torch.autograd, torch.autograd.graph) if hasattr(owner, "_engine_run_backward")]
        for owner in owners if engine is not None else ():
            setattr(owner, "_engine_run_backward", self._around(engine))  # noqa: B010  (private: not in torch's stubs)
        try:
            yield self
        finally:
            for owner in owners if engine is not None else ():
                setattr(owner, "_engine_run_backward", engine)  # noqa: B010
            for handle in handles:
                handle.remove()

    def _around(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        """The one Python door to the autograd engine, so that backward is known to begin and to end."""

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self.backward_began()
            self._backwards += 1
            try:
                return engine(*args, **kwargs)
            finally:
                self._backwards -= 1
                self.backward_ended()

        return run_backward

    @property
    def trains(self) -> bool:
        """A backward or an optimizer was seen: else the job serves requests."""
        return bool(self.optimizers or self._backwards_now or self.backwards_per_step or self.step > 1)

    @property
    def completed(self) -> int:
        """Steps that are done."""
        done = self._stepped or (self._own_optimizer and self._backwards_now and self.phase != BACKWARD)
        return self.step if done else self.step - 1

    def current(self) -> int:
        """The id of the innermost running module, -1 = none."""
        return self.running[-1] if self.running else -1

    # ---- modules

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        if not self.running and self.phase != BACKWARD:
            self._begin_if_stepped()
            self.requests += 1
            self._root(module)
            values = inputs if isinstance(inputs, tuple) else ()
            self._mark((each for each in values if isinstance(each, torch.Tensor) and not each.requires_grad), INPUT)
            self.autocast = (
                str(torch.get_autocast_dtype("cuda")).removeprefix("torch.")
                if torch.is_autocast_enabled("cuda")
                else None
            )
        self.running.append(self._id_of(module))
        if self.phase == BACKWARD:
            self.recomputes |= self.recomputing
            self._moved(BACKWARD)
        else:
            self._moved(FORWARD)

    def _leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        if self.running:
            self.running.pop()
        if self.phase == BACKWARD or self.running:
            self._moved(self.phase)
        else:
            self._moved(OPTIMIZER if self._in_step else OTHER)

    def _id_of(self, module: torch.nn.Module) -> int:
        known = self._paths.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        self._root(module)
        return self._paths[id(module)][1]

    def _root(self, module: torch.nn.Module) -> None:
        """`module` was called from outside any module: name its parts, and mark what it owns."""
        known = self._paths.get(id(module))
        if known is None or known[0]() is not module:
            inside = any(root() is not None and _contains(root(), module) for root in self.roots)
            if not inside:
                self.roots.append(weakref.ref(module))
            for name, part in module.named_modules():
                self._paths[id(part)] = (weakref.ref(part), self._name(name or type(module).__name__))
        self.mark_module(module)

    def _name(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.modules)
            self.modules.append(name)
        return found

    def _parameter_registered(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        if isinstance(parameter, torch.Tensor):
            self._mark((parameter,), PARAMETER)

    # ---- phases

    @property
    def recomputing(self) -> bool:
        """A module runs within backward: activation checkpointing."""
        return self.phase == BACKWARD and len(self.running) > self._outside_backward

    def backward_began(self) -> None:
        """The engine starts (also called by a recorder that sees it at work)."""
        if self.phase != BACKWARD:
            self._begin_if_stepped()
            self._backwards_now += 1
            self._outside_backward = len(self.running)
            self._moved(BACKWARD)

    def backward_ended(self) -> None:
        """The engine returned, unless this was a nested run."""
        if self.phase == BACKWARD and not self._backwards:
            for root in self.live_roots():
                self.mark_gradients(held_by(root)[0])
            self._moved(OPTIMIZER if self._in_step else FORWARD if self.running else OTHER)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.backward_ended()
        self._in_step += 1
        if not any(known() is optimizer for known in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
        for group in optimizer.param_groups:
            self._mark(group["params"], PARAMETER)  # a model's own were told of; these may be of none
            self.mark_gradients(group["params"])
        self._moved(OPTIMIZER)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.mark_state(optimizer)
        self._in_step -= 1
        if not self._in_step:
            self._complete_step()
            self._moved(BACKWARD if self._backwards else OTHER)  # a step from a gradient hook is inside backward

    def _complete_step(self) -> None:
        self._stepped = True
        if self._backwards_now:
            self.backwards_per_step, self._backwards_now = self._backwards_now, 0
        if self.on_step is not None:
            self.on_step(self.step)

    def _begin_if_stepped(self) -> None:
        """A forward or backward is about to begin: a new step, if the one before was completed."""
        if self._in_step:
            return
        if not self._stepped and self._backwards_now and not self.optimizers:
            if self._own_optimizer is None:
                self._own_optimizer = not self._has_an_optimizer()
            if self._own_optimizer:
                self._complete_step()
        if not self._stepped:
            return
        if self.steps is not None and self.step >= self.steps:
            if self.before_stop is not None:
                self.before_stop()
            raise StopAfterSteps(f"{self.step} optimizer steps are recorded")
        self._stepped = False
        self.step += 1

    def _has_an_optimizer(self) -> bool:
        """Whether one of torch's optimizers holds a parameter of a module that ran.

        While FSDP2 has a module's parameters gathered, these are others than the shards that its optimizer holds.
        """
        roots = [root for each in self.roots if (root := each()) is not None]
        known = {id(parameter) for root in roots for parameter in root.parameters()}
        groups = [group for each in living(torch.optim.Optimizer) for group in each.param_groups]
        held = [parameter for group in groups for parameter in group["params"]]
        if any(id(parameter) in known for parameter in held):
            return True
        sharding = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        sharded = any(isinstance(module, sharding) for root in roots for module in root.modules())
        return sharded and any(hasattr(parameter, "device_mesh") for parameter in held)

    def _moved(self, phase: str) -> None:
        self.phase = phase
        self.sink.changed(phase, self.step, self.running[-1] if self.running else -1)
        if self.on_change is not None:
            self.on_change()

    # ---- roles

    def mark_module(self, module: torch.nn.Module) -> None:
        parameters, buffers = held_by(module)
        self._mark(parameters, PARAMETER)
        self._mark(buffers, BUFFER)

    def mark_gradients(self, parameters: Iterable[Any]) -> None:
        leaves = (each for each in parameters if isinstance(each, torch.Tensor) and each.is_leaf)
        self._mark([grad for each in leaves if (grad := each.grad) is not None], GRADIENT)

    def mark_state(self, optimizer: torch.optim.Optimizer) -> None:
        self._mark(tensors_in(optimizer.state), STATE)  # a parameter among them stays one: the stronger role

    def mark_everything(self, modules: Iterable[torch.nn.Module] = ()) -> None:
        """At the end: the roles of all that the known modules and optimizers still hold."""
        modules = list(modules)
        if not self.roots:  # the script did not come to its first forward
            parts = {id(part) for module in modules for part in module.modules() if part is not module}
            self.roots = [
                weakref.ref(each)
                for each in modules
                if id(each) not in parts and next(each.parameters(), None) is not None
            ]
        for module in (*self.live_roots(), *modules):
            self.mark_module(module)
            self.mark_gradients(held_by(module)[0])
        for optimizer in self.live_optimizers():
            self.mark_state(optimizer)

    def held(self) -> dict[str, int]:
        """Bytes of parameters, gradients and optimizer state that the known models hold now, without their sharing."""
        found = dict.fromkeys(("parameter", "gradient", "optimizer_state"), 0)
        for root in self.live_roots():
            for parameter in root.parameters():
                found["parameter"] += local_bytes(parameter)
                found["gradient"] += local_bytes(parameter.grad) if parameter.is_leaf else 0
        for optimizer in self.live_optimizers():
            found["optimizer_state"] += sum(map(local_bytes, tensors_in(optimizer.state)))
        return found

    def live_roots(self) -> list[torch.nn.Module]:
        """The models: modules that were called from outside any module."""
        return [module for root in self.roots if (module := root()) is not None]

    def live_optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for reference in self.optimizers if (optimizer := reference()) is not None]

    def _mark(self, tensors: Iterable[torch.Tensor | None], category: int) -> None:
        found: list[torch.Tensor] = []
        for tensor in tensors:
            if type(tensor) in _PLAIN:
                found.append(tensor)  # type: ignore[arg-type]
            elif tensor is not None:
                found += plain_tensors(tensor)
        self.sink.mark_all(found, category)


def living(kind: type[Kind]) -> list[Kind]:
    """The modules or optimizers that exist, without those that are half made."""
    return [each for each in gc.get_objects() if issubclass(type(each), kind) and is_made(each)]


def is_made(each: "torch.nn.Module | torch.optim.Optimizer") -> bool:
    """torch's own `__init__` has run: before it, nothing of it can be asked."""
    return "_parameters" in vars(each) or "param_groups" in vars(each)


def local_bytes(tensor: torch.Tensor | None) -> int:
    """Of this rank's shard; 0 for what is not on a GPU."""
    plain = plain_tensors(tensor) if tensor is not None else []
    return sum(each.numel() * each.element_size() for each in plain if each.device.type != "cpu")


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a wrapper subclass (DTensor, ...) holds; a plain tensor itself."""
    parts = wrapped_by(tensor)
    return [tensor] if parts is None else [inner for part in parts for inner in plain_tensors(part)]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in a nest of mappings, lists and tuples, the first one first."""
    found: list[torch.Tensor] = []
    nest = [value]
    while nest:
        each = nest.pop()
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, Mapping):
            nest.extend(reversed(list(each.values())))
        elif isinstance(each, (list, tuple)):
            nest.extend(reversed(each))
    return found


def held_by(module: torch.nn.Module) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
    """Parameters and buffers of the module and its parts: `parameters()` at a fraction of the time, in any order."""
    parameters: list[torch.Tensor | None] = []
    buffers: list[torch.Tensor | None] = []
    seen = {module}
    nest = [module]
    while nest:
        part = nest.pop()
        parameters += part._parameters.values()
        buffers += part._buffers.values()
        for child in part._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                nest.append(child)
    return parameters, buffers


def _contains(root: torch.nn.Module | None, module: torch.nn.Module) -> bool:
    return root is not None and any(part is module for part in root.modules())
