"""What a CUDA kernel allocates beside the tensors that its operation returns, as records; and what decides it.

An estimator is a pure function `(func, args, kwargs, out, target) -> Sequence[Scratch]`. Where its numbers come from
stands in `source`: the source file of PyTorch, cub or flash-attention that was read, or "measured: ..." for recordings.
`estimated` says that a size rests on something that neither of them settles; the report lists these.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """One allocation inside a kernel."""

    bytes: int
    source: str
    # handle: kept per thread role and stream, allocated once. trial: when its key is met for the first time, a library
    # tries its algorithms in the most of `instead` that fits, perhaps in `bytes`; then PyTorch empties the cache
    kind: Literal["call", "handle", "trial"] = "call"
    key: object = None
    estimated: bool = False
    before: bool = False  # allocated before the operation's outputs
    instead: tuple[int, ...] = ()  # sizes that are tried in turn where memory is short
    between: tuple[int, int] | None = (
        None  # of an estimate: the least and the most; where unknown, none to twice as much
    )
    until: int = -1  # freed before scratch number `until` of the same call is allocated; -1: at the end, newest first

    @property
    def is_workspace(self) -> bool:
        """A library asked for it (its source says so); the rest are temporaries of ATen's own kernels."""
        return self.kind == "handle" or "workspace" in self.source.lower()

    @property
    def evidence(self) -> Literal["measured", "read in source", "estimated"]:
        """What its size rests on."""
        if self.estimated:
            return "estimated"
        return "measured" if "measured" in self.source else "read in source"


class Gpu(Protocol):
    """What a data sheet has to say; `device.GpuTarget` does."""

    @property
    def sm_count(self) -> int: ...
    @property
    def threads_per_sm(self) -> int: ...
    @property
    def compute_capability(self) -> tuple[int, int]: ...
    @property
    def torch_version(self) -> tuple[int, int] | None: ...
    @property
    def flops(self) -> float: ...
    @property
    def memory_bandwidth(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The GPU and the software that the run pretends to be."""

    sm_count: int
    threads_per_sm: int
    compute_capability: tuple[int, int]
    torch_version: tuple[int, int]
    cudnn_version: int = 91900  # what the CUDA wheels of recent torch require
    cublas_bytes: int = 0  # workspace of one cuBLAS handle on one stream
    cublaslt_bytes: int = MIB
    flops: float = 0.0  # FLOP/s in float, without tensor cores; 0 = not known
    memory_bandwidth: float = 1.0  # bytes/s

    @property
    def major(self) -> int:
        return self.compute_capability[0]


def target_of(gpu: Gpu, environ: Mapping[str, str] | None = None) -> Target:
    """The target for a data sheet, with its torch version (default: the installed one) and the environment."""
    environ = os.environ if environ is None else environ
    return Target(
        sm_count=gpu.sm_count,
        threads_per_sm=gpu.threads_per_sm,
        compute_capability=gpu.compute_capability,
        torch_version=gpu.torch_version or installed_torch(),
        flops=gpu.flops,
        memory_bandwidth=gpu.memory_bandwidth,
        cublas_bytes=cublas_workspace_bytes(gpu.compute_capability, environ.get("CUBLAS_WORKSPACE_CONFIG")),
        cublaslt_bytes=1024 * int(environ.get("CUBLASLT_WORKSPACE_SIZE") or 1024),
    )


def installed_torch() -> tuple[int, int]:
    major, minor = re.match(r"(\d+)\.(\d+)", torch.__version__).groups()  # type: ignore[union-attr]
    return int(major), int(minor)


def cublas_workspace_bytes(compute_capability: tuple[int, int], config: str | None = None) -> int:
    """parseChosenWorkspaceSize of aten/src/ATen/cuda/CublasHandlePool.cpp; `config` is CUBLAS_WORKSPACE_CONFIG."""
    pairs = re.findall(r":([0-9]+):([0-9]+)", config or "")
    if pairs:
        return sum(int(size) * 1024 * int(count) for size, count in pairs)
    hopper_or_newer = compute_capability[0] in (9, 10, 12)
    return 32 * MIB if hopper_or_newer else 2 * 4096 * 1024 + 8 * 16 * 1024


Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Arguments:
    """Arguments of an operation by name, as its schema orders them."""

    __slots__ = ("_args", "_kwargs", "_names")

    def __init__(self, func: Any, args: Args, kwargs: Kwargs) -> None:
        self._names = schema_names(func)
        self._args = args
        self._kwargs = kwargs

    def get(self, name: str, default: Any = None) -> Any:
        if name in self._kwargs:
            return self._kwargs[name]
        index = self._names.get(name, len(self._args))
        return self._args[index] if index < len(self._args) else default


_SCHEMAS: dict[Any, dict[str, int]] = {}


def schema_names(func: Any) -> dict[str, int]:
    names = _SCHEMAS.get(func)
    if names is None:
        names = _SCHEMAS[func] = {argument.name: i for i, argument in enumerate(func._schema.arguments)}
    return names


def is_dense(tensor: torch.Tensor) -> bool:
    """Non-overlapping and dense: the strides are a permutation of contiguous ones."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
