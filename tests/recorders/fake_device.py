"""A GPU for tests: CPU tensors that are really computed, their memory kept by a model of PyTorch's caching allocator.

It is the `Accelerator` of a recorder: OOMDOC_ACCELERATOR=fake_device:FakeDevice. FAKE_DEVICE_BYTES is its capacity (of
the rank FAKE_DEVICE_RANK alone, where that is set), FAKE_DEVICE_UUID its identity.
"""

import os
import sys
import time
import weakref

import torch
from oomdoc.allocator.config import AllocatorConfig
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.recorders.accelerator import Counted
from oomdoc.snapshots.model import Action, BlockState
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MIB = 1 << 20
LARGE = 1 << 40
CONTEXT_BYTES = 300 * MIB
HIDDEN = ("fake_device.py", "_python_dispatch.py", "allocator/machine.py", "allocator/heap.py")


class Watching(TorchDispatchMode):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor) and each.device.type == "cpu" and each.layout is torch.strided:
                self.device.saw(each)
        return out


class FakeDevice:
    type = "cpu"

    def __init__(self, capacity_bytes=None):
        mine = os.environ.get("FAKE_DEVICE_RANK", os.environ.get("RANK", "0")) == os.environ.get("RANK", "0")
        named = int(os.environ.get("FAKE_DEVICE_BYTES", LARGE)) if mine else LARGE
        self.total = capacity_bytes or named
        self.entries = []
        self.text = ""
        self.storages = {}
        self.observers = []
        self.ooms = 0
        self.recording = False
        self.calls = []
        config = AllocatorConfig()
        self.allocator = Allocator(config, self.total - CONTEXT_BYTES, self._event, total_bytes=self.total)

    # ---- what the recorder asks for

    def available(self):
        return None

    def start(self, *, max_entries, stacks):
        self.calls.append(("start", max_entries, stacks))
        self.recording = True
        self.max_entries = max_entries
        self.watching = Watching(self)
        self.watching.__enter__()

    def stop(self):
        self.calls.append(("stop",))
        self.recording = False
        self.watching.__exit__(None, None, None)

    def observe_oom(self, call):
        self.observers.append(call)
        return True

    def devices(self):
        return [0] if self.counted(0).allocations else []

    def counted(self, device):
        stats = self.allocator.memory_stats()
        return Counted(stats["allocation.all.allocated"], stats["allocation.all.freed"])

    def label(self, text):
        self.text = text

    def address_of(self, tensor):
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return None
        known = self.storages.get(tensor.untyped_storage()._cdata)
        return None if known is None else (0, known[1])

    def free_and_total(self, device):
        return self.allocator.heap.driver.free_bytes(), self.total

    def allocated(self, device):
        allocator = self.allocator
        return allocator.allocated_bytes, allocator.peak_allocated_bytes, allocator.reserved_bytes

    def out_of_memory_errors(self, device):
        return self.ooms

    def identity(self, device):
        return "Fake GPU", os.environ.get("FAKE_DEVICE_UUID", f"GPU-fake-{os.environ.get('LOCAL_RANK', '0')}")

    def snapshot(self):
        kept = self.entries[-self.max_entries :]
        return {"segments": self._segments(kept), "device_traces": [kept], "allocator_settings": {}}

    # ---- memory

    def saw(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.storages or not storage.nbytes():
            return
        try:
            address = self.allocator.malloc(storage.nbytes())
        except OutOfMemory as error:
            self.ooms += 1
            for call in self.observers:
                call(0, error.tried, self.total, error.device_free)
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {error.tried / MIB:.2f} MiB. GPU 0 has a total capacity of "
                f"{self.total / MIB:.2f} MiB of which {error.device_free / MIB:.2f} MiB is free."
            ) from None
        self.storages[key] = (weakref.ref(storage, lambda _: self._died(key)), address)

    def _died(self, key):
        _, address = self.storages.pop(key)
        self.allocator.free(address)

    def _event(self, action, address, size, stream):
        action = Action(action)
        entry = {"action": action.name.lower(), "addr": address, "size": size, "stream": stream}
        if action is Action.OOM:
            entry["device_free"] = entry.pop("addr")
        entry |= {"time_us": time.time_ns() // 1000, "user_metadata": self.text, "frames": _stack()}
        if self.recording:
            self.entries.append(entry)

    def _segments(self, entries):
        stack_of = {e["addr"]: e["frames"] for e in entries if e["action"] == "alloc"}
        return [
            {
                "device": 0,
                "address": view.address,
                "total_size": view.total_bytes,
                "stream": view.stream,
                "segment_type": "large" if view.large else "small",
                "segment_pool_id": view.pool_id,
                "is_expandable": view.expandable,
                "frames": [],
                "blocks": [
                    {
                        "address": block.address,
                        "size": block.size,
                        "requested_size": block.requested,
                        "state": BlockState(block.state).name.lower(),
                        "frames": stack_of.get(block.address, []),
                    }
                    for block in view.blocks
                ],
            }
            for view in self.allocator.segments()
        ]


def _stack():
    frames, frame = [], sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.endswith(HIDDEN):
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames
