"""Which modules exist, which of them are whole models, and which are a model's repeated blocks."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

_CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)


class ModuleRegistry:
    """The modules with parameters that a script builds, and who holds whom. Keeps none of them alive."""

    def __init__(self) -> None:
        self._owners: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._parent: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[torch.nn.Module]] = (
            weakref.WeakKeyDictionary()
        )
        self._handles = (
            register_module_parameter_registration_hook(self._parameter),
            register_module_module_registration_hook(self._child),
        )

    def _parameter(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None:
            self._owners.add(module)

    def _child(self, module: torch.nn.Module, name: str, child: Any) -> None:
        if isinstance(child, torch.nn.Module):
            self._parent[child] = weakref.ref(module)

    def top_of(self, module: torch.nn.Module) -> torch.nn.Module:
        """The outermost living module that holds `module`."""
        seen = {id(module)}
        while True:
            ref = self._parent.get(module)
            parent = ref() if ref is not None else None
            if parent is None or id(parent) in seen or all(child is not module for child in parent.children()):
                return module
            seen.add(id(parent))
            module = parent

    def tops(self) -> list[torch.nn.Module]:
        """Every whole model: the outermost module above each one that owns a parameter."""
        found: dict[int, torch.nn.Module] = {}
        for owner in list(self._owners):
            top = self.top_of(owner)
            found[id(top)] = top
        return list(found.values())

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def class_names(module: torch.nn.Module) -> set[str]:
    """The names under which a user may know the module's class; `fully_shard` puts a subclass on top."""
    return {cls.__name__ for cls in type(module).__mro__ if cls not in (torch.nn.Module, object)}


def of_classes(root: torch.nn.Module, names: Iterable[str]) -> list[torch.nn.Module]:
    """The modules of `root` (itself included) of these classes, in order, none inside another."""
    wanted = set(names)

    def walk(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        if class_names(module) & wanted:
            yield module
            return
        for child in module.children():
            yield from walk(child)

    return list({id(module): module for module in walk(root)}.values())


def repeated_blocks(root: torch.nn.Module) -> tuple[str, ...]:
    """The class names of the blocks that a model repeats: what to checkpoint and to wrap.

    Those children of the outermost lists and sequences of modules that have parameters and a class that occurs at
    least twice there. Where a model keeps several such lists, all count that carry at least a tenth of the
    parameters of the largest. Of a list of stages (of a ResNet, a Swin, a UNet) it is the blocks inside them.
    """
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for container in _outermost_lists(root):
        for name, size in _blocks(container):
            counts[name] += 1
            sizes[name] += size
    repeated = {name: size for name, size in sizes.items() if counts[name] >= 2}
    limit = max(repeated.values(), default=0) / 10
    return tuple(name for name, size in repeated.items() if size >= limit)


def _blocks(container: torch.nn.Module) -> list[tuple[str, int]]:
    """Class and number of parameters of each child that is worth a checkpoint: not a single layer of torch.nn."""
    found = []
    for child in container.children():
        single = type(child).__module__.startswith("torch.nn") and not any(True for _ in child.children())
        size = sum(p.numel() for p in child.parameters())
        if size and not single and not isinstance(child, _CONTAINERS):
            found.append((user_class(child), size))
    return found


def _outermost_lists(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Lists of modules with a repeated class of blocks; a list without one, or of stages, is looked into."""
    inside = [found for child in module.children() for found in _outermost_lists(child)]
    if isinstance(module, _CONTAINERS):
        blocks = _blocks(module)
        name, count = next(iter(Counter(name for name, _ in blocks).most_common(1)), ("", 0))
        stages = len({size for each, size in blocks if each == name}) == count  # each of another width
        if count >= 2 and not (stages and inside):
            yield module
            return
    yield from inside


def user_class(module: torch.nn.Module) -> str:
    """The class as the user wrote it, below what `fully_shard` puts on top."""
    cls = type(module)
    if cls.__name__.startswith("FSDP") and len(cls.__mro__) > 2 and cls.__mro__[1].__name__ == "FSDPModule":
        cls = cls.__mro__[2]
    return cls.__name__
