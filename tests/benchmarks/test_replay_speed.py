"""The allocator's speed: a replay against a bare `pickle.load` of the same file, and the inner loop by itself."""

import pickle
import subprocess
import sys
import time

import pytest
from oomdoc.allocator.config import MIB
from oomdoc.allocator.machine import Allocator
from oomdoc.allocator.replay import replay
from oomdoc.snapshots import reader

pytestmark = pytest.mark.slow


def test_replay_of_a_million_events_takes_less_than_three_bare_loads(shared, tmp_path):
    """CPU time of both in this process; the load with the garbage collector on, as peers do it."""
    path = tmp_path / "million.pickle"
    maker = shared / "tools" / "make_snapshot.py"
    subprocess.run([sys.executable, maker, "--events", "1000000", "--depth", "40", "-o", path], check=True)
    start = time.process_time()
    with path.open("rb") as file:
        loaded = pickle.load(file)  # noqa: S301  (made just above; it is the yardstick)
    load = time.process_time() - start
    del loaded
    snapshot = reader.load(path)
    start = time.process_time()
    result = replay(snapshot.devices[0], snapshot.settings, snapshot.stacks)
    took = time.process_time() - start
    events, ratio = len(snapshot.devices[0].trace), took / load
    print(f"\nreplay of {events} events: {took:.2f} s, {ratio:.2f} of a bare load ({load:.2f} s)")  # noqa: T201  (its result)
    assert result.exact
    assert took <= 3 * load


def test_a_malloc_and_a_free_take_a_few_microseconds():
    """The yardstick is one dictionary insert and look-up on this machine; 60 of them are some 5 us."""
    allocator = Allocator(None, 80 << 30, lambda *event: None)
    sizes = [512, 4096, 70_000, MIB, 3 * MIB, 20 * MIB, 64 * MIB]
    rounds = 100_000
    live = []
    start = time.process_time()
    for turn in range(rounds):
        live.append(allocator.malloc(sizes[turn * 7919 % 7]))
        if len(live) > 300:
            allocator.free(live.pop(turn * 104_729 % 300))
    pair = (time.process_time() - start) / rounds
    start = time.process_time()
    table = {}
    for turn in range(rounds):
        table[turn * 7919 % 1000] = turn
        table.get(turn)
    unit = (time.process_time() - start) / rounds
    print(f"\nmalloc and free: {pair * 1e6:.1f} us, {pair / unit:.0f} x the yardstick ({unit * 1e6:.2f} us)")  # noqa: T201
    assert pair < 60 * unit
