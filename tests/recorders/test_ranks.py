"""Ranks that differ are each run: stages of a pipeline side by side, the last rank where shards are uneven."""

from pathlib import Path

import pytest
from oomdoc.recorders.launch import RunResult, RunSpec, run
from oomdoc.recorders.mailbox import Mailbox
from oomdoc.snapshots import reader

JOBS = Path(__file__).resolve().parent / "jobs"


def run_ranks(name: str, folder: Path, *args: str, rank: int | None = None, nodes: int = 1) -> RunResult:
    return run(
        RunSpec(
            script=str(JOBS / f"{name}.py"), run_dir=folder, args=args, gpu="a100-40gb", steps=0,
            nproc_per_node=4, nnodes=nodes, rank=rank or 0, others=rank is None,
        )
    )  # fmt: skip


@pytest.mark.slow
def test_every_stage_of_a_pipeline_is_run_and_counted(tmp_path: Path) -> None:
    """Also where a rank holds two stages that are not neighbours; each learns its input's shape from the one before."""
    result = run_ranks("pipeline", tmp_path, "1F1B", "Interleaved1F1B")
    assert (result.exit_status, result.failure) == (0, None)
    assert [path.name for path in result.snapshots] == [f"rank{rank}.pickle" for rank in range(4)]
    recordings = [reader.load(path).recording for path in result.snapshots]
    assert [recording.rank for recording in recordings if recording is not None] == [0, 1, 2, 3]


def test_one_stage_alone_says_what_it_waits_for(tmp_path: Path) -> None:
    result = run_ranks("pipeline", tmp_path, "GPipe", rank=2)
    assert result.exit_status == 2
    assert result.failure is not None
    assert "rank 2 waits for what rank" in result.failure
    assert "no --rank" in result.failure


@pytest.mark.slow
def test_the_rank_with_the_smallest_shard_is_run_as_well(tmp_path: Path) -> None:
    result = run_ranks("uneven", tmp_path)
    assert (result.exit_status, result.failure) == (0, None)
    assert [path.name for path in result.snapshots] == ["rank0.pickle", "rank3.pickle"]
    recording = reader.load(result.snapshots[0]).recording
    assert recording is not None
    assert "shards are uneven: rank 3" in str(recording.fidelity)


def test_messages_keep_their_order_and_a_ring_asks_for_nobody(tmp_path: Path) -> None:
    here, there = Mailbox(0, tmp_path), Mailbox(1, tmp_path)
    for message in (b"one", b"two"):
        here.send(1, message)
    assert [there.receive(0), there.receive(0)] == [b"one", b"two"]
    (tmp_path / "0.ended").touch()
    with pytest.raises(Exception, match="rank 1 waits for what rank 0 sends, which ended"):
        there.receive(0)
    said: list[dict[str, int]] = []
    ring = Mailbox(0, tmp_path, said.append)
    ring.tensor_sent(1)
    ring.tensor_received(7)
    assert ring.peers == ()
    ring.tensor_received(1)
    assert ring.peers == (1,)
    assert said == [{"peer": 1, "rank": 0}]
