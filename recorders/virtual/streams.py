"""CUDA streams and events that order nothing and time nothing, but say which stream an allocation belongs to.

The allocator keeps its blocks apart by stream, so the handle of the current stream is part of every allocation.
As in c10/cuda/CUDAStream.cpp a device has one default stream (handle 0) and, per priority, a pool of 32 that
`torch.cuda.Stream()` hands out in turn: the 33rd is the first again.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .patching import patches
from .private import C

if TYPE_CHECKING:
    from .session import Session

POOL_STREAMS = 32  # kStreamsPerPool, c10/cuda/CUDAStream.cpp
_CUDA_DEVICE_TYPE = 1  # c10::DeviceType::CUDA
_HANDLE_BASE = 0x5555_0000_0000  # where our pretended cudaStream_t pointers lie; 0 is the default stream


class Selected(threading.local):
    """What this thread has selected: its device, and per device the id of its current stream (0 = default)."""

    def __init__(self) -> None:
        self.device = 0
        self.stream_ids: dict[int, int] = {}


selected = Selected()


def current_device_index() -> int:
    """Index of this thread's current device."""
    return selected.device


def handle_of(stream_id: int, index: int) -> int:
    """The `cudaStream_t` of a stream id: 0 for the default stream, an external stream's own pointer."""
    if stream_id == 0:
        return 0
    if not stream_id & 1:  # external streams: the id is the pointer
        return stream_id
    return _HANDLE_BASE + (index << 20) + (stream_id << 4)


def current_stream_handle(index: int) -> int:
    """Handle of this thread's current stream on device `index`: what the allocator keys its blocks by."""
    return handle_of(selected.stream_ids.get(index, 0), index)


class CurrentStreams:
    """`streams[index]`: the handle of the calling thread's current stream on that device."""

    def __getitem__(self, index: int) -> int:
        return current_stream_handle(index)


class _Entered(list[tuple[int, int]]):
    """What was selected before each `with stream:`; (device, stream id)."""


class _Pools:
    """Hands out pool streams in turn, per device and priority."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[tuple[int, int], int] = {}

    def take(self, index: int, priority: int) -> int:
        rank = min(max(-priority, 0), 5)  # 0 = lowest; priorities run from 0 to -5
        with self._lock:
            turn = self._next.get((index, rank), 0)
            self._next[index, rank] = turn + 1
        return (turn % POOL_STREAMS) << 5 | (rank + 1) << 1 | 1


_pools = _Pools()


class Stream(torch.Stream):
    """`torch.cuda.Stream` of the virtual GPU. Everything queued is done at once."""

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> "Stream":
        if "stream_ptr" in given:
            index = _index(device)
            ids = {"stream_id": int(given["stream_ptr"]), "device_index": index}
        elif "stream_id" in given:
            ids = {"stream_id": given["stream_id"], "device_index": given.get("device_index", selected.device)}
        else:
            index = _index(device)
            ids = {"stream_id": _pools.take(index, priority), "device_index": index}
        stream: Stream = super().__new__(cls, device_type=_CUDA_DEVICE_TYPE, **ids)
        return stream

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything was said to `__new__`."""

    @property
    def cuda_stream(self) -> int:
        return handle_of(self.stream_id, self.device_index)

    native_handle = cuda_stream

    @property
    def priority(self) -> int:
        """0 for the default and for external streams, else that of the pool it was taken from."""
        return 1 - (self.stream_id >> 1 & 0xF) if self.stream_id & 1 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -5)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def wait_stream(self, stream: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        entered = getattr(self, "_entered", None)
        if entered is None:
            entered = self._entered = _Entered()
        entered.append((selected.device, selected.stream_ids.get(self.device_index, 0)))
        selected.device = self.device_index
        selected.stream_ids[self.device_index] = self.stream_id
        return self

    def __exit__(self, *_: object) -> None:
        device, stream_id = self._entered.pop()
        selected.stream_ids[self.device_index] = stream_id
        selected.device = device

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, torch.Stream)
            and (other.stream_id, other.device_index) == (self.stream_id, self.device_index)
            and other.device_type == _CUDA_DEVICE_TYPE
        )

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)


class ExternalStream(Stream):
    """A stream that another library made, by its pointer."""

    def __new__(cls, stream_ptr: int, device: Any = None, **given: Any) -> "ExternalStream":
        stream: ExternalStream = super().__new__(cls, device=device, stream_ptr=stream_ptr)  # type: ignore[assignment]
        return stream


class Event:
    """`torch.cuda.Event` and `torch.Event`. Its times are this machine's, not the GPU's."""

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        # torch.cuda.Event takes enable_timing first, torch.Event the device
        self.enable_timing = device if isinstance(device, bool) else enable_timing
        self._index: int | None = None if device is None or isinstance(device, bool) else _index(device)
        self._seconds: float | None = None
        self.event_id = 0

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> "Event":
        raise RuntimeError("oomdoc: the virtual GPU has no CUDA IPC (torch.cuda.Event.from_ipc_handle)")

    def ipc_handle(self) -> bytes:
        raise RuntimeError("oomdoc: the virtual GPU has no CUDA IPC (torch.cuda.Event.ipc_handle)")

    @property
    def device(self) -> torch.device | None:
        return None if self._index is None else torch.device("cuda", self._index)

    @property
    def cuda_event(self) -> int:
        return 0 if self._seconds is None else id(self)

    def record(self, stream: Any = None) -> None:
        self._index = selected.device if stream is None else stream.device_index
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds between the two records on this machine; raises as CUDA does when one is missing."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1000

    def __repr__(self) -> str:
        return "<torch.cuda.Event uninitialized>" if self._seconds is None else f"<torch.cuda.Event {id(self):#x}>"


def _index(device: Any) -> int:
    """The device index that `device` (None, int, str, torch.device) means; None = the current one."""
    if device is None:
        return selected.device
    if isinstance(device, int):
        return selected.device if device < 0 else device
    index = torch.device(device).index
    return selected.device if index is None else index


def _generic_stream(device: Any = None, *, priority: int = 0, **given: Any) -> Any:
    """`torch.Stream(...)`: ours for CUDA or no device, torch's own for another device type."""
    kind = given.get("device_type", _CUDA_DEVICE_TYPE)
    if kind != _CUDA_DEVICE_TYPE or (isinstance(device, str | torch.device) and torch.device(device).type != "cuda"):
        return _RAW_STREAM(device, priority=priority, **given)
    return Stream(device, priority, **given)


_RAW_STREAM: Any = torch.Stream


class _AnyStream(type):
    """`isinstance(x, torch.Stream)` holds for ours and torch's; calling it makes ours."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RAW_STREAM)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _RAW_STREAM)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _generic_stream(*args, **kwargs)


class GenericStream(metaclass=_AnyStream):
    """Stands for `torch.Stream` while the virtual GPU is the accelerator."""


def exchange_device(index: int) -> int:
    """`torch._C._cuda_exchangeDevice`: select, return what was selected; -1 = only ask."""
    previous = selected.device
    if index >= 0:
        selected.device = index
    return previous


def set_stream(stream_id: int, device_index: int, device_type: int = _CUDA_DEVICE_TYPE) -> None:
    """`torch._C._cuda_setStream`: also selects the stream's device, as CUDA does."""
    selected.device = device_index
    selected.stream_ids[device_index] = stream_id


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """Streams and events of torch.cuda, under every name that torch holds for them, for the time of the block."""
    with patches() as held:
        held.swap_everywhere(
            [
                (torch.cuda.Stream, Stream),
                (torch.cuda.ExternalStream, ExternalStream),
                (torch.cuda.Event, Event),
                (torch.Event, Event),
                (torch.Stream, GenericStream),
            ]
        )
        held.set_all(
            C,
            {
                "_cuda_getCurrentStream": lambda i: (selected.stream_ids.get(i, 0), i, _CUDA_DEVICE_TYPE),
                "_cuda_getDefaultStream": lambda i: (0, i, _CUDA_DEVICE_TYPE),
                "_cuda_getStreamFromExternal": lambda pointer, i: (int(pointer), i, _CUDA_DEVICE_TYPE),
                "_cuda_setStream": set_stream,
                "_cuda_getDevice": current_device_index,
                "_cuda_setDevice": lambda i: exchange_device(i) and None,
                "_cuda_exchangeDevice": exchange_device,
                "_cuda_maybeExchangeDevice": exchange_device,
            },
        )
        held.set_all(torch.cuda, {"_exchange_device": exchange_device, "_maybe_exchange_device": exchange_device})
        before = (selected.device, dict(selected.stream_ids))
        try:
            yield
        finally:
            selected.device, selected.stream_ids = before
