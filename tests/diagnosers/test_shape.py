"""Backwards of a recording without a stack: where the pile of a forward falls in the life of one scalar."""

import numpy as np
from oomdoc.diagnosers.attribution.phases import BACKWARD, FORWARD, OPTIMIZER
from oomdoc.diagnosers.attribution.shape import phases_by_shape, seeded_backwards
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import DeviceSnapshot
from oomdoc.snapshots.timeline import lifetimes

KIB = 1 << 10


class Script:
    """Allocations and frees by name; what is never freed stays in the segments."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.held: dict[str, tuple[int, int]] = {}

    def make(self, name: str, size: int = 64 * KIB) -> None:
        self.held[name] = (1 << 20) * (len(self.entries) + 1), size
        self._note("alloc", name)

    def drop(self, name: str) -> None:
        self._note("free_requested", name)
        self._note("free_completed", name)
        del self.held[name]

    def _note(self, action: str, name: str) -> None:
        address, size = self.held[name]
        self.entries.append({"action": action, "addr": address, "size": size, "stream": 0})

    def device(self) -> DeviceSnapshot:
        blocks = [
            {"size": -(-s // 512) * 512, "requested_size": s, "state": "active_allocated"}
            for _, s in self.held.values()
        ]
        segments = [
            {
                "address": a,
                "total_size": b["size"],
                "stream": 0,
                "segment_type": "large",
                "blocks": [{"address": a, **b}],
            }
            for (a, _), b in zip(self.held.values(), blocks, strict=True)
        ]
        return reader.from_dict({"segments": segments, "device_traces": [self.entries]}).devices[0]


def train(script: Script, rounds: int, layers: int = 6, *, backward: bool = True) -> list[tuple[int, int]]:
    """First and last event of each backward; the loss lives until the next round binds its name again."""
    found = []
    for number in range(rounds):
        for layer in range(layers):
            script.make(f"activation {layer}")
        script.make(f"loss {number}", 4)
        script.make("loss of a part", 4)
        if number:
            script.drop(f"loss {number - 1}")
        start = len(script.entries)
        if backward:
            script.make("seed", 4)
        for layer in reversed(range(layers)):
            if backward:
                script.make(f"of {layer}", 48 * KIB)
                script.make(f"gradient {layer} of {number}", 32 * KIB)
            script.drop(f"activation {layer}")
            if backward:
                script.drop(f"of {layer}")
        if backward:
            script.drop("seed")
        found.append((start, len(script.entries) - 2))  # the seed's free_requested
        script.drop("loss of a part")
        for layer in range(layers):
            if backward and number:
                script.drop(f"gradient {layer} of {number - 1}")
    return found


def test_a_backward_is_the_life_of_its_seed() -> None:
    script = Script()
    script.make("weight")
    told = train(script, 3)
    device = script.device()
    found = seeded_backwards(device.trace, lifetimes(device))
    assert [(each.seed, each.last) for each in found] == told
    phases = phases_by_shape(device.trace, lifetimes(device), ())
    for start, last in told:
        assert set(phases.phase[start : last + 1].tolist()) == {BACKWARD}
        assert phases.phase[start - 3] == FORWARD
    assert OPTIMIZER in phases.phase[told[0][1] + 1 :]


def test_a_graph_that_is_dropped_at_once_is_no_backward() -> None:
    """An evaluation with gradients: the next loss takes the name of the last, and its graph goes in reverse order."""
    script = Script()
    train(script, 4, backward=False)
    device = script.device()
    assert seeded_backwards(device.trace, lifetimes(device)) == []


def test_a_scalar_that_lives_while_layers_run_is_no_seed() -> None:
    """Inference drops a layer's result when the next is made: in the same order."""
    script = Script()
    script.make("sum of all", 4)
    script.make("x")
    for layer in range(20):
        script.make(f"y {layer}")
        script.drop("x" if layer == 0 else f"y {layer - 1}")
    script.drop("sum of all")
    device = script.device()
    assert seeded_backwards(device.trace, lifetimes(device)) == []
    assert not np.isin(phases_by_shape(device.trace, lifetimes(device), ()).phase, (BACKWARD,)).any()
