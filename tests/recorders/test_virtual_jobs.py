"""Unmodified scripts on the virtual GPU, each in its own process. The scripts check their own memory by hand."""

from pathlib import Path

import pytest
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.snapshots import reader
from oomdoc.snapshots.check import self_check

JOBS = Path(__file__).resolve().parent / "jobs"


def run_job(name: str, folder: Path, *args: str, **ranks: int) -> list[str]:
    """Runs to its end, writes a sound snapshot; returns the fidelity remarks."""
    spec = RunSpec(script=str(JOBS / f"{name}.py"), run_dir=folder, args=args, gpu="a100-40gb", steps=0, **ranks)
    result = run(spec)
    assert result.failure is None
    assert result.exit_status == 0
    (path,) = result.snapshots
    snapshot = reader.load(path)
    assert self_check(snapshot) == ()
    assert len(snapshot.devices[0].trace) > 0
    assert snapshot.recording is not None
    return [str(each) for each in snapshot.recording.fidelity]


@pytest.mark.parametrize("name", ["plain_loop", "amp_fp16", "optimizers", "retry", "autograd_features", "save_load"])
def test_one_process(name: str, tmp_path: Path) -> None:
    run_job(name, tmp_path)


@pytest.mark.parametrize("kind", ["reentrant", "not-reentrant"])
def test_checkpointing(kind: str, tmp_path: Path) -> None:
    run_job("checkpointing", tmp_path, kind)


def test_ddp_as_rank_1_of_4(tmp_path: Path) -> None:
    run_job("ddp", tmp_path, nproc_per_node=4, rank=1)


def test_fsdp1_as_rank_0_of_8(tmp_path: Path) -> None:
    run_job("fsdp1", tmp_path, nproc_per_node=8)


@pytest.mark.parametrize("nodes", [1, pytest.param(512, marks=pytest.mark.slow)])
def test_fsdp2_of_a_llama(nodes: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_job("fsdp2_hf", tmp_path, nproc_per_node=8, nnodes=nodes)


def test_meshes_of_8_ranks(tmp_path: Path) -> None:
    run_job("parallel", tmp_path, nproc_per_node=8)


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    run_job("accelerate_loop", tmp_path)


def test_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_job("hf_trainer", tmp_path)
