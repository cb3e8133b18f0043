"""cuDNN's own answer, on a machine without a GPU: the plans it offers for a convolution and the workspace of each.

Since cuDNN 9.8 plans can be made for a device that is described instead of present ("deviceless ahead-of-time
compilation", docs.nvidia.com/deeplearning/cudnn). Its library comes with every CUDA build of torch, and as the wheel
`nvidia-cudnn-cu13` beside a CPU build. One question takes 1 to 3 ms. Nothing is run, and no driver is needed.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

OLDEST = 90800  # describes a device
PATIENCE_SECONDS = 60.0  # with a process that asks it for the first time
Direction = Literal["forward", "data", "filter"]


class Dtype(IntEnum):
    """cudnnDataType_t."""

    FLOAT = 0
    DOUBLE = 1
    HALF = 2
    BFLOAT16 = 9


class Note(IntEnum):
    """cudnnBackendNumericalNote_t: what PyTorch filters plans by (Conv_v8.cpp filterEngineConfigs)."""

    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    NONDETERMINISTIC = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """One convolution: x (N, C, *) and y (N, K, *), the weight (K, C / groups, *); two or three spatial sizes.

    `direction` says which of the three is the result: y ("forward"), x ("data") or the weight ("filter").
    """

    direction: Direction
    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: Dtype
    channels_last: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute it; `workspace` in bytes."""

    engine: int
    workspace: int
    notes: frozenset[int]


class CudnnError(Exception):
    """cuDNN refused: its status and its own words."""


class Cudnn:
    """The library, and a device described to it; `plans` answers from then on."""

    def __init__(self, library: ctypes.CDLL, compute_capability: tuple[int, int]) -> None:
        self._api = library
        self._pointers: list[ctypes.c_void_p] = []
        self.version = int(library.cudnnGetVersion())
        self._device = self._make(_DEVICE)
        text = ctypes.create_string_buffer(json.dumps(described(compute_capability)).encode())
        self._set(self._device, _DEVICE_JSON, _CHAR, text, len(text))
        self._finalize(self._device)
        self._pointers.clear()  # the device stays
        self._known: dict[Problem, tuple[Plan, ...]] = {}

    def plans(self, problem: Problem) -> tuple[Plan, ...]:
        """What PyTorch would be offered, in its order: the heuristic's plans, best first, then the fallbacks.

        Empty where cuDNN knows none. Asked once for each problem.
        """
        found = self._known.get(problem)
        if found is None:
            try:
                with self._transient():
                    graph = self._graph(problem)
                    found = (*self._answers(graph, _HEURISTIC), *self._answers(graph, _FALLBACK))
            except CudnnError:
                found = ()
            self._known[problem] = found
        return found

    def _graph(self, problem: Problem) -> ctypes.c_void_p:
        tensors = [
            self._tensor(number, shape, problem)
            for number, shape in enumerate((problem.x, problem.weight, problem.y), start=1)
        ]
        settings = self._make(_CONVOLUTION)
        compute = problem.dtype if problem.dtype is Dtype.DOUBLE else Dtype.FLOAT
        self._set_ints(settings, 100, _DATA_TYPE, (compute,))
        self._set_ints(settings, 101, _CONVOLUTION_MODE, (_CROSS_CORRELATION,))
        for attribute, values in (
            (102, problem.dilation),
            (103, problem.stride),
            (104, problem.padding),
            (105, problem.padding),
            (106, (len(problem.stride),)),
        ):
            self._set_ints(settings, attribute, _INT64, values)
        self._finalize(settings)
        kind, (alpha, beta, convolution), places = _OPERATIONS[problem.direction]
        operation = self._make(kind)
        self._set_one(operation, convolution, settings)
        for place, tensor in zip(places, tensors, strict=True):
            self._set_one(operation, place, tensor)
        scalar, number = (
            (ctypes.c_double, _DOUBLE) if problem.dtype is Dtype.DOUBLE else (ctypes.c_float, _FLOAT)
        )  # the type of the computation
        self._set(operation, alpha, number, (scalar * 1)(1.0), 1)
        self._set(operation, beta, number, (scalar * 1)(0.0), 1)
        self._finalize(operation)
        graph = self._make(_GRAPH)
        self._set_one(graph, 801, operation)
        self._finalize(graph)
        return graph

    def _tensor(self, number: int, shape: tuple[int, ...], problem: Problem) -> ctypes.c_void_p:
        tensor = self._make(_TENSOR)
        self._set_ints(tensor, 901, _DATA_TYPE, (problem.dtype,))
        self._set_ints(tensor, 902, _INT64, shape)
        self._set_ints(tensor, 903, _INT64, strides(shape, problem.channels_last))
        self._set_ints(tensor, 906, _INT64, (number,))
        self._set_ints(tensor, 900, _INT64, (16,))  # the most that PyTorch looks for (getAlignment)
        self._finalize(tensor)
        return tensor

    def _answers(self, graph: ctypes.c_void_p, mode: int) -> Iterator[Plan]:
        heuristics = self._make(_HEURISTICS)
        self._set_one(heuristics, 201, graph)
        self._set_ints(heuristics, 200, _HEURISTIC_MODE, (mode,))
        self._set_one(heuristics, 204, self._device)
        self._finalize(heuristics)
        for choice in self._get_descriptors(heuristics, 202, _CHOICE):
            plan = self._plan(choice)
            if plan is not None:
                yield plan

    def _plan(self, choice: ctypes.c_void_p) -> Plan | None:
        """None where the plan cannot be made: PyTorch passes over it too."""
        try:
            plan = self._make(_PLAN)
            self._set_one(plan, 401, choice)
            self._set_one(plan, 407, self._device)
            self._finalize(plan)
            (engine,) = self._get_descriptors(choice, 300, _ENGINE)
            return Plan(
                engine=self._get_ints(engine, 1301, _INT64, 1)[0],
                workspace=self._get_ints(plan, 402, _INT64, 1)[0],
                notes=frozenset(self._get_ints(engine, 1303, _NUMERICAL_NOTE, 32)),
            )
        except CudnnError:
            return None

    @contextmanager
    def _transient(self) -> Iterator[None]:
        try:
            yield
        finally:
            for pointer in reversed(self._pointers):
                self._api.cudnnBackendDestroyDescriptor(pointer)
            self._pointers.clear()

    def _make(self, kind: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self._check(self._api.cudnnBackendCreateDescriptor(kind, ctypes.byref(pointer)))
        self._pointers.append(pointer)
        return pointer

    def _finalize(self, descriptor: ctypes.c_void_p) -> None:
        self._check(self._api.cudnnBackendFinalize(descriptor))

    def _set(self, descriptor: ctypes.c_void_p, attribute: int, kind: int, values: object, count: int) -> None:
        self._check(
            self._api.cudnnBackendSetAttribute(descriptor, attribute, kind, ctypes.c_int64(count), values)  # by address
        )

    def _set_ints(self, descriptor: ctypes.c_void_p, attribute: int, kind: int, values: Sequence[int]) -> None:
        each = ctypes.c_int64 if kind == _INT64 else ctypes.c_int32
        self._set(descriptor, attribute, kind, (each * len(values))(*values), len(values))

    def _set_one(self, descriptor: ctypes.c_void_p, attribute: int, value: ctypes.c_void_p) -> None:
        self._set(descriptor, attribute, _DESCRIPTOR, (ctypes.c_void_p * 1)(value), 1)

    def _get_ints(self, descriptor: ctypes.c_void_p, attribute: int, kind: int, most: int) -> list[int]:
        each = ctypes.c_int64 if kind == _INT64 else ctypes.c_int32
        values, count = (each * most)(), ctypes.c_int64()
        self._check(
            self._api.cudnnBackendGetAttribute(
                descriptor, attribute, kind, ctypes.c_int64(most), ctypes.byref(count), values
            )
        )
        return list(values)[: count.value]

    def _get_descriptors(self, descriptor: ctypes.c_void_p, attribute: int, kind: int) -> list[ctypes.c_void_p]:
        """The caller makes them, cuDNN fills them in."""
        count = ctypes.c_int64()
        ask = self._api.cudnnBackendGetAttribute
        self._check(ask(descriptor, attribute, _DESCRIPTOR, ctypes.c_int64(0), ctypes.byref(count), None))
        made = [self._make(kind) for _ in range(count.value)]
        filled = (ctypes.c_void_p * len(made))(*made)
        self._check(ask(descriptor, attribute, _DESCRIPTOR, ctypes.c_int64(len(made)), ctypes.byref(count), filled))
        return made[: count.value]

    def _check(self, status: int) -> None:
        if status:
            said = ctypes.create_string_buffer(512)
            self._api.cudnnGetLastErrorString(said, ctypes.c_size_t(len(said)))
            raise CudnnError(f"status {status}: {said.value.decode(errors='replace')}")


def strides(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    """Of a dense tensor in torch's contiguous or channels-last format."""
    order = [1, *range(len(shape) - 1, 1, -1), 0] if channels_last else range(len(shape) - 1, -1, -1)
    found, step = [0] * len(shape), 1
    for dim in order:
        found[dim] = step
        step *= shape[dim]
    return tuple(found)


def described(compute_capability: tuple[int, int]) -> dict[str, object]:
    """A device in cuDNN's own words.

    The compute capability alone decides its answers: 72 questions had the same ones with other clocks, caches, memory,
    shared memory, SM counts and drivers than these, which are an A100's.
    """
    major, minor = compute_capability
    return {
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": 108,
        "smCountOrigin": 0,  # the whole device
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": 166912,
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": 42298834944,
        "smClockRateKHz": 1410000,
        "memClockRateKHz": 1215000,
        "l2CacheSize": 41943040,
        "cudaDeviceId": 0,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 13000,
        "deviceName": "",
    }


@cache
def installed(compute_capability: tuple[int, int]) -> Cudnn | None:
    """The cuDNN of this environment for such a device; None where there is none that can be asked."""
    library = _library()
    if library is None:
        return None
    try:
        return Cudnn(library, compute_capability)
    except CudnnError:
        return None


@cache
def _library() -> ctypes.CDLL | None:
    """libcudnn_graph, where a process of its own has asked it something and lived.

    It ends the process where it does not find cuBLAS, or one that it was not made for.
    """
    found = _found()
    if found is None:
        return None
    ask = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    try:
        done = subprocess.run(
            [sys.executable, "-c", ask, __file__], capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
        return _loaded(*found) if done.returncode == 0 else None
    except (OSError, subprocess.SubprocessError):
        return None


def _found() -> tuple[Path, Path] | None:
    """libcudnn_graph, and cuBLAS where cuDNN's own search path looks for it."""
    spec = find_spec("nvidia.cudnn") if find_spec("nvidia") else None
    for folder in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
        graph = folder / "lib" / "libcudnn_graph.so.9"
        places = (folder.parent / "cu13" / "lib", folder.parent / "cublas" / "lib")
        blas = [each for place in places for each in sorted(place.glob("libcublasLt.so.[0-9]*"))]
        if graph.is_file() and blas:
            return graph, blas[0]
    return None


def _loaded(graph: Path, blas: Path) -> ctypes.CDLL | None:
    """None for a release that is too old. Raises OSError where one of the two cannot be loaded."""
    ctypes.CDLL(str(blas), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(graph), mode=ctypes.RTLD_GLOBAL)
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return library if library.cudnnGetVersion() >= OLDEST else None


def _ask() -> bool:
    """One small question, which the process may not survive."""
    found = _found()
    library = _loaded(*found) if found else None
    x, one = (1, 8, 8, 8), (1, 1)
    small = Problem("forward", x, (8, 8, 3, 3), x, one, one, one, Dtype.FLOAT, channels_last=False)
    return library is not None and bool(Cudnn(library, (8, 0)).plans(small))


# cudnnBackendDescriptorType_t, cudnnBackendAttributeType_t, cudnnBackendHeurMode_t (cudnn_graph.h); attributes of
# cudnnBackendAttributeName_t stand where they are set
_CONVOLUTION, _ENGINE, _CHOICE, _HEURISTICS, _PLAN, _GRAPH, _TENSOR, _DEVICE = 1, 2, 3, 4, 5, 15, 17, 38
_DATA_TYPE, _INT64, _FLOAT, _DOUBLE, _CONVOLUTION_MODE, _HEURISTIC_MODE = 1, 3, 4, 5, 7, 8
_NUMERICAL_NOTE, _DESCRIPTOR, _CHAR = 11, 15, 24
_CROSS_CORRELATION, _HEURISTIC, _FALLBACK, _DEVICE_JSON = 1, 0, 2, 2702
# descriptor, (alpha, beta, settings), (x, weight, y)
_OPERATIONS = {
    "forward": (10, (700, 701, 702), (704, 703, 705)),
    "filter": (11, (712, 713, 714), (716, 715, 717)),
    "data": (12, (706, 707, 708), (710, 709, 711)),
}

if __name__ == "__main__":
    sys.exit(0 if _ask() else 1)
