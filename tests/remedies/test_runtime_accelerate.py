"""fsdp applied to a script whose model accelerate prepares, here through the Hugging Face Trainer."""

import json
import sys
from pathlib import Path

import pytest
from oomdoc.diagnosers.interface import Category
from oomdoc.diagnosers.profile import build
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.remedies.config_file import ConfigFile, write
from oomdoc.remedies.interface import Setting
from oomdoc.snapshots.reader import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_hf.py"
SIZES = ("--layers", "4", "--width", "512", "--length", "256", "--vocab", "1000", "--batch-size", "4")


@pytest.mark.slow
def test_a_trainer_on_two_ranks_is_sharded(tmp_path: Path) -> None:
    """Parameters, and the optimizer's two moments, take half of what the whole model would."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    apply = tmp_path / "oomdoc.yaml"
    write(ConfigFile(remedies=(Setting(name="fsdp", options={"wrap": ["LlamaDecoderLayer"]}),)), apply)
    result = run(
        RunSpec(
            script=str(EXAMPLE),
            args=SIZES,
            run_dir=tmp_path,
            gpu="a100-80gb",
            steps=2,
            apply=apply,
            nproc_per_node=2,
            python=sys.executable,
        ),
        log=tmp_path / "log",
    )
    assert result.exit_status == 0, (tmp_path / "log").read_text()[-2000:]
    assert "accelerate shards the model (FSDP2)" in (tmp_path / "log").read_text()
    snapshot = load(result.snapshots[0])
    assert snapshot.recording is not None
    parameters = json.loads(json.dumps(snapshot.recording.facts["parameters"]))
    assert parameters["sharded"]
    whole = 4 * parameters["count"]
    profile = build([snapshot]).devices[0]
    assert profile.bytes_of(Category.PARAMETER) == pytest.approx(whole / 2, rel=0.05)
    assert profile.bytes_of(Category.OPTIMIZER_STATE) == pytest.approx(whole, rel=0.05)
