"""Unmodified scripts on the virtual GPU, each in its own process. The scripts check their own memory by hand."""

import importlib.util
import subprocess
import sys
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
    return [f"{name}: {each}" for name, each in snapshot.recording.fidelity.items()]


@pytest.mark.parametrize(
    "name",
    [
        "amp_fp16",
        "autograd_features",
        *[pytest.param(each, marks=pytest.mark.slow) for each in ("plain_loop", "optimizers", "retry", "save_load")],
    ],
)
def test_one_process(name: str, tmp_path: Path) -> None:
    run_job(name, tmp_path)


@pytest.mark.parametrize("kind", ["reentrant", "not-reentrant"])
def test_checkpointing(kind: str, tmp_path: Path) -> None:
    run_job("checkpointing", tmp_path, kind)


@pytest.mark.slow
def test_ddp_in_its_variants(tmp_path: Path) -> None:
    run_job("ddp_options", tmp_path, nproc_per_node=4)


@pytest.mark.slow
def test_fsdp_in_its_variants(tmp_path: Path) -> None:
    run_job("sharded_options", tmp_path, nproc_per_node=4)


def test_tensor_sequence_context_and_expert_parallel(tmp_path: Path) -> None:
    """A router's choices are said to be taken as spread evenly."""
    assert any("spread evenly" in each for each in run_job("parallel_models", tmp_path, nproc_per_node=4))


@pytest.mark.slow
def test_spawned_processes(tmp_path: Path) -> None:
    assert any("process 0 of 4" in each for each in run_job("spawned", tmp_path, nproc_per_node=4))


def test_ddp_as_rank_1_of_4(tmp_path: Path) -> None:
    run_job("ddp", tmp_path, nproc_per_node=4, rank=1)


def test_fsdp1_as_rank_0_of_8(tmp_path: Path) -> None:
    run_job("fsdp1", tmp_path, nproc_per_node=8)


@pytest.mark.parametrize("nodes", [1, pytest.param(512, marks=pytest.mark.slow)])
def test_fsdp2_of_a_llama(nodes: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_job("fsdp2_hf", tmp_path, nproc_per_node=8, nnodes=nodes)


@pytest.mark.slow
def test_meshes_of_8_ranks(tmp_path: Path) -> None:
    run_job("parallel", tmp_path, nproc_per_node=8)


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    run_job("accelerate_loop", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["moved", "mapped"])
def test_a_checkpoint_larger_than_memory(how: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_job("big_checkpoint", tmp_path, how)


@pytest.mark.slow
def test_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_job("hf_trainer", tmp_path)


@pytest.mark.parametrize("name", ["lightning_fit", "peft_lora", "unet"])
@pytest.mark.slow
def test_frameworks(name: str, tmp_path: Path) -> None:
    pytest.importorskip({"lightning_fit": "lightning", "peft_lora": "peft", "unet": "diffusers"}[name])
    run_job(name, tmp_path)


@pytest.mark.parametrize("kind", ["dpo", *[pytest.param(each, marks=pytest.mark.slow) for each in ("sft", "grpo")]])
@pytest.mark.slow
def test_trl(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    run_job("trl_trainer", tmp_path, kind)


def test_torchvision_and_timm(tmp_path: Path) -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    if subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False).returncode:
        pytest.skip("torchvision is not installed, or built for another torch")
    run_job("vision", tmp_path)


def test_extensions_are_modelled_or_named(tmp_path: Path) -> None:
    """The last line imports what nobody has taught: the run stops there, and says how to teach it."""
    if any(importlib.util.find_spec(name) for name in ("flash_attn", "xformers", "apex")):
        pytest.skip("one of the extensions is installed here")
    script = JOBS / "extensions.py"
    result = run(RunSpec(script=str(script), run_dir=tmp_path, gpu="a100-40gb", steps=0))
    assert result.exit_status == 2
    assert result.failure is not None
    last = len(script.read_text().splitlines())
    assert "flash_attn.bert_padding:unpad_input allocates" in result.failure
    assert f"extensions.py:{last}" in result.failure
    assert "oomdoc.operations" in result.failure
    (path,) = result.snapshots
    recording = reader.load(path).recording
    assert recording is not None
    assert "flash_attn is not installed here" in str(recording.fidelity)
