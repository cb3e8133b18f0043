"""The child process that reads: its answer, its errors, its end, and what happens when the parent is interrupted."""

import os
import pickle
import select
import signal
import sys
import time
from pathlib import Path
from typing import IO

import pytest
from oomdoc.errors import UnreadableInputError
from oomdoc.snapshots import reader, sandbox, writer
from oomdoc.snapshots.model import Snapshot, Stacks

from .generated import Job, snapshot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the child process is Linux only")
EMPTY = Snapshot(devices=(), stacks=Stacks())


def fail(error: BaseException) -> Snapshot:
    raise error


def hold(seconds: float) -> Snapshot:
    time.sleep(seconds)
    return EMPTY


def spin() -> Snapshot:
    while True:
        pass


def test_its_own_refusal_comes_back_as_it_was() -> None:
    with pytest.raises(UnreadableInputError, match=r"^the reason$"):
        sandbox.Reading(lambda: fail(UnreadableInputError("the reason")), 0).result()


def test_a_fault_of_ours_is_no_fault_of_the_file() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        sandbox.Reading(lambda: fail(ZeroDivisionError()), 0).result()


def test_a_child_that_dies_is_reported() -> None:
    with pytest.raises(UnreadableInputError, match="too little memory"):
        sandbox.Reading(lambda: os.kill(os.getpid(), signal.SIGKILL) or EMPTY, 0).result()
    with pytest.raises(UnreadableInputError, match="status -11"):
        sandbox.Reading(lambda: os.kill(os.getpid(), signal.SIGSEGV) or EMPTY, 0).result()


def test_memory_is_bounded() -> None:
    with pytest.raises(UnreadableInputError, match="more memory"):
        sandbox.Reading(lambda: len(bytearray(4 << 30)) and EMPTY, 1000).result()


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS_FREE", 1)
    with pytest.raises(UnreadableInputError, match="far longer"):
        sandbox.Reading(spin, 0).result()


def test_an_interrupt_ends_the_child_too() -> None:
    reading = sandbox.Reading(lambda: hold(60), 0)
    with pytest.raises(KeyboardInterrupt):
        reading.result(while_waiting=lambda: fail(KeyboardInterrupt()))
    with pytest.raises(ProcessLookupError):
        os.kill(reading._pid, 0)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(reader, "FENCE_BYTES", 0)
    paths = [tmp_path / f"rank{rank}.pickle" for rank in range(7)]
    for rank, path in enumerate(paths):
        writer.dump(reader.from_dict(snapshot([Job(rank).run(20 + rank)])), path)
    return paths


def test_several_ranks_are_read_side_by_side_in_their_order(files: list[Path]) -> None:
    called = []
    found = reader.load_all(files, meanwhile=lambda: called.append(1))
    assert [writer.to_dict(each) for each in found] == [writer.to_dict(reader.load(path)) for path in files]
    assert called == [1]


def _children() -> set[str]:
    """Of this process, those included that ended and that nobody waited for; other tests may have left some."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_one_bad_rank_is_named_and_no_child_is_left(files: list[Path]) -> None:
    files[2].write_bytes(pickle.dumps({"segments": 1}))
    before = _children()
    with pytest.raises(UnreadableInputError, match=r"rank2\.pickle is not a snapshot"):
        reader.load_all(files)
    assert _children() <= before


def test_a_small_file_with_an_odd_value_is_read_in_the_child(tmp_path: Path) -> None:
    raw = snapshot([Job(1).run(30)])
    raw["device_traces"][0][0]["user_metadata"] = {"a set": {1, 2}, ("nested", ("tuple",)): frozenset({3})}
    path = tmp_path / "odd.pickle"
    path.write_bytes(pickle.dumps(raw))
    assert path.stat().st_size < reader.FENCE_BYTES
    assert writer.to_dict(reader.load(path)) == writer.to_dict(reader.from_dict(raw))


def test_progress_goes_up_to_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child begins after the first look at it, and ends after one that finds it nearly done."""
    may_go_on, go_on = os.pipe()
    read = reader._read

    def turn() -> None:
        if select.select([may_go_on], [], [], 60)[0]:
            os.read(may_go_on, 1)

    def in_turns(file: IO[bytes], *, fenced: bool) -> Snapshot:
        turn()
        snapshot = read(file, fenced=fenced)
        turn()
        return snapshot

    monkeypatch.setattr(reader, "_read", in_turns)
    monkeypatch.setattr(reader, "FENCE_BYTES", 0)
    monkeypatch.setattr(sandbox, "POLL_SECONDS", 0.001)
    path = tmp_path / "snapshot.pickle"
    raw = snapshot([Job(1).run(30)])
    raw["device_traces"][0] = [dict(event) for _ in range(3000) for event in raw["device_traces"][0]]
    path.write_bytes(pickle.dumps(raw))
    seen: list[float] = []

    def look(share: float) -> None:
        if not seen or seen[-1] < 0.5 < share:
            os.write(go_on, b"!")
        seen.append(share)

    reader.load(path, on_progress=look)
    assert seen == sorted(seen)
    assert seen[0] < 0.01
    assert 0.5 < seen[-1] <= 1
