"""Snapshots made by a small allocator that never reuses space while it is taken: the tests' own ground truth."""

import random
from typing import Any

Raw = dict[str, Any]
SEGMENT = 1 << 21


class Job:
    """Allocates and frees at random on one device, recording events as PyTorch does; nothing is shared on purpose."""

    def __init__(self, seed: int, device: int = 0) -> None:
        self.rng = random.Random(seed)
        self.device = device
        self.events: list[Raw] = []
        self.segments: dict[int, list[list[int]]] = {}  # address -> blocks [address, size, requested, state]
        self.clock = 1_700_000_000_000_000
        self.pending: list[tuple[int, int]] = []

    def stack(self) -> list[Raw]:
        depth = self.rng.randrange(4)
        return [
            {"name": f"f{self.rng.randrange(3)}", "filename": "job.py", "line": self.rng.choice((0, 5, 2**64 - 1))}
            for _ in range(depth)
        ]

    def emit(self, action: str, addr: int, size: int) -> None:
        self.clock += self.rng.randrange(3)
        self.events.append(
            {
                "action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.clock,
                "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), "frames": self.stack(),
            }
        )  # fmt: skip

    def grow(self) -> None:
        address = (1 << 40) + len(self.segments) * 4 * SEGMENT + self.device * (1 << 36)
        if self.rng.random() < 0.05:
            address += 1 << 63
        self.segments[address] = [[address, SEGMENT, 0, 0]]
        self.emit("segment_alloc", address, SEGMENT)

    def allocate(self) -> None:
        requested = self.rng.randrange(1, 300_000)
        size = -(-requested // 512) * 512
        fits = [
            (s, i) for s, blocks in self.segments.items() for i, b in enumerate(blocks) if not b[3] and b[1] >= size
        ]
        if not fits:
            return self.grow()
        segment, at = self.rng.choice(fits)
        address, room, _, _ = self.segments[segment][at]
        parts = [[address, size, requested, 1]]
        if room > size:
            parts.append([address + size, room - size, requested + 7, 0])  # stale, as in real files
        self.segments[segment][at : at + 1] = parts
        return self.emit("alloc", address, requested)

    def live(self, state: int) -> list[list[int]]:
        return [block for blocks in self.segments.values() for block in blocks if block[3] == state]

    def free(self) -> None:
        blocks = self.live(1)
        if blocks:
            block = self.rng.choice(blocks)
            self.emit("free_requested", block[0], block[2])
            block[3] = 2
            if self.rng.random() < 0.8:
                self.complete(block)

    def complete(self, block: list[int]) -> None:
        self.emit("free_completed", block[0], block[2])
        block[3] = 0

    def run(self, steps: int) -> "Job":
        for _ in range(steps):
            roll = self.rng.random()
            if roll < 0.55:
                self.allocate()
            elif roll < 0.9:
                self.free()
            elif self.live(2):
                self.complete(self.rng.choice(self.live(2)))
            elif roll < 0.93:
                self.emit(self.rng.choice(("snapshot", "annotate", "user_defined")), 0, 5)
            else:
                self.events.append({"action": "oom", "device_free": 77, "size": 1024, "stream": 0,
                                    "time_us": self.clock, "pool_id": (0, 0), "frames": self.stack()})  # fmt: skip
        return self

    def raw_segments(self) -> list[Raw]:
        names = ("inactive", "active_allocated", "active_pending_free")
        return [
            {
                "device": self.device, "address": address, "total_size": SEGMENT, "stream": 0, "frames": self.stack(),
                "allocated_size": 0, "active_size": 0, "requested_size": 0, "segment_type": "small",
                "segment_pool_id": (0, 0), "is_expandable": False,
                "blocks": [
                    {"address": a, "size": size, "requested_size": requested, "state": names[state],
                     "frames": self.stack()}
                    for a, size, requested, state in blocks
                ],
            }
            for address, blocks in self.segments.items()
        ]  # fmt: skip


def snapshot(jobs: list[Job], keep: int | None = None) -> Raw:
    """The dict of `_snapshot()`; with `keep` only the last events, as a full ring buffer leaves them."""
    traces: list[list[Raw]] = [[] for _ in range(max(job.device for job in jobs) + 1)]
    for job in jobs:
        traces[job.device] = job.events if keep is None else job.events[-keep:] if keep else []
    return {
        "segments": [segment for job in jobs for segment in job.raw_segments()],
        "device_traces": traces,
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        "external_annotations": [],
    }
