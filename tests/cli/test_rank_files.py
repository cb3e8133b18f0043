"""Folders of snapshots as training scripts leave them: which file is which rank."""

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from oomdoc.api.files import ranks_of


def snapshot(size: int) -> bytes:
    block = {"address": 1 << 30, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 1 << 30, "total_size": 1 << 25, "stream": 0, "segment_type": "large"}
    segment |= {"allocated_size": size, "active_size": size, "blocks": [block]}
    free = {"address": (1 << 30) + size, "size": (1 << 25) - size, "requested_size": 0, "state": "inactive"}
    segment["blocks"] = [block, {**free, "frames": []}]
    return pickle.dumps({"segments": [segment], "device_traces": [[]]}, protocol=4)


def analyzed(*targets: Path) -> dict[int, int]:
    """Bytes at the peak of each rank, by the real command."""
    command = [sys.executable, "-m", "oomdoc", "analyze", "--format", "json", *map(str, targets)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {each["rank"]: each["peak"]["requested_bytes"] for each in json.loads(done.stdout)["devices"]}


def test_the_name_of_a_file_tells_its_rank(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        name = tmp_path / f"rank{rank}_memory_snapshot.pickle"
        name.write_bytes(snapshot((rank + 1) << 20))
    (tmp_path / "rank3_memory_snapshot.pickle.gz").write_bytes(gzip.compress(snapshot(4 << 20)))
    assert analyzed(tmp_path) == {0: 1 << 20, 2: 3 << 20, 3: 4 << 20, 10: 11 << 20}


def test_numbers_order_files_that_name_no_rank(tmp_path: Path) -> None:
    for number in (9, 10):
        (tmp_path / f"gpu{number}.pkl").write_bytes(snapshot(number << 20))
    assert analyzed(tmp_path) == {0: 9 << 20, 1: 10 << 20}


def test_a_folder_of_folders_says_which_one_holds_snapshots(tmp_path: Path) -> None:
    inner = tmp_path / "iteration_10"
    inner.mkdir()
    (inner / "rank0_memory_snapshot.pickle").write_bytes(snapshot(1 << 20))
    done = subprocess.run([sys.executable, "-m", "oomdoc", "analyze", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 3
    assert f"{inner} does" in done.stderr


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["host0_rank8.pickle", "host1_rank9.pickle"], [8, 9]),
        (["snap-rank-1.pickle", "snap-rank-0.pickle"], [1, 0]),
        (["lora_rank8.pickle"], None),
        (["rank0_a.pickle", "rank0_b.pickle"], None),
        (["lowrank8.pickle", "lowrank9.pickle"], None),
        (["lora_rank8_gpu.pickle", "other.pickle"], None),
    ],
)
def test_ranks_are_taken_from_names_only_where_all_tell(names: list[str], found: list[int] | None) -> None:
    assert ranks_of([Path(name) for name in names]) == found
