"""`import oomdoc`: light, small, and what its documentation says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_importing_it_imports_nothing(tmp_path: Path) -> None:
    """And yet every name of it is there."""
    code = (
        "import sys, oomdoc\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'yaml', 'rich', 'typer'})\n"
        "names = set(oomdoc.__all__) - {'TransformersCallback', 'LightningCallback'}\n"
        "print(all(getattr(oomdoc, name) for name in names) and names <= set(dir(oomdoc)))\n"
        "print('torch' in sys.modules)\n"
    )
    assert python(code, tmp_path).stdout == "set()\nTrue\nFalse\n"


RECORD = """
import oomdoc
import torch


def step(width):
    model = torch.nn.Linear(width, width, bias=False, device="cuda")
    model(torch.ones(8, width, device="cuda")).sum().backward()
    return model


with oomdoc.record(gpu="t4", save="block.pickle") as recording:
    kept = step(1024)
    assert recording.running and recording.allocated_bytes >= 8 << 20
    del kept
print(recording.peak_bytes >= 8 << 20, recording.analyze().out_of_memory)
again = oomdoc.analyze("block.pickle")
assert again.peak_bytes == recording.peak_bytes and len(oomdoc.load("block.pickle")) == 1
assert again.to_dict()["devices"][0]["peak"] == recording.analyze().to_dict()["devices"][0]["peak"]
assert again.categories["gradient"] == 4 << 20
assert "## No out of memory" in again._repr_markdown_() and "NO OUT OF MEMORY" in str(again)


@oomdoc.record(gpu="t4", capacity="1GiB")
def train(width):
    '''Trains.'''
    return step(width).weight.shape[0]


assert train(64) == 64 and train.__doc__ == "Trains."
first = train.recording.peak_bytes
train(128)
assert train.recording.peak_bytes > first
try:
    train(1 << 15)
except torch.OutOfMemoryError:
    print(train.recording.analyze().out_of_memory, train.recording.analyze().findings[0].code)
print(torch.cuda.is_available(), torch.ones(2).sum().item())
"""


@pytest.mark.slow
def test_recording_a_block_and_a_function(tmp_path: Path) -> None:
    """The numbers are those of the file it saves; an error passes through; afterwards torch is as before."""
    done = python(RECORD, tmp_path)
    assert done.stdout == "True False\nTrue OOM012\nFalse 2.0\n", done.stderr


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("oomdoc.analyze('none.pickle')", "there is no file or directory none.pickle"),
        ("oomdoc.record('warp-drive').__enter__()", "no GPU called 'warp-drive'"),
        ("oomdoc.record(virtual=False).__enter__()", "needs a CUDA device and none is visible"),
        ("oomdoc.Recording().analyze()", "when the recorded block has ended"),
    ],
)
def test_what_cannot_be_done_is_an_oomdoc_error(tmp_path: Path, code: str, told: str) -> None:
    """With a sentence."""
    done = python(f"import oomdoc\ntry:\n    {code}\nexcept oomdoc.OomdocError as error:\n    print(error)\n", tmp_path)
    assert told in done.stdout, done.stderr


TRANSFORMERS = """
import oomdoc, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2)
data = [{"input_ids": torch.arange(32), "labels": torch.arange(32)}] * 8
with oomdoc.record(gpu="t4") as recording:
    arguments = TrainingArguments("out", max_steps=2, logging_steps=1, report_to="none", save_strategy="no",
                                  per_device_train_batch_size=2, disable_tqdm=True)
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data,
                      callbacks=[oomdoc.TransformersCallback()])
    trainer.train()
peaks = [each["gpu_peak_gib"] for each in trainer.state.log_history if "gpu_peak_gib" in each]
print(len(peaks) >= 2, abs(peaks[-1] - recording.peak_bytes / 2**30) < 0.01)
"""
LIGHTNING = """
import logging
import oomdoc, torch
from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 8)), batch_size=4)
callback = oomdoc.LightningCallback()
trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, callbacks=[callback])
trainer.fit(Model(), data)
print(callback.recording, trainer.global_step)
"""


@pytest.mark.slow
def test_the_callback_of_transformers(tmp_path: Path) -> None:
    """Within a recorded block it adds the peak to what the trainer logs."""
    pytest.importorskip("transformers")
    done = python(TRANSFORMERS, tmp_path)
    assert done.stdout.splitlines()[-1:] == ["True True"], done.stderr


@pytest.mark.slow
def test_the_callback_of_lightning_without_a_gpu(tmp_path: Path) -> None:
    """It says what to do, and training goes on."""
    pytest.importorskip("lightning", reason="it is in the extra `frameworks`")
    done = python(LIGHTNING, tmp_path)
    assert done.stdout.splitlines()[-1:] == ["None 2"], done.stderr
    assert "put `with oomdoc.record():` around" in done.stderr


@pytest.mark.slow
def test_the_example_notebook_runs(tmp_path: Path) -> None:
    """Every cell, in a kernel; the report is shown as Markdown."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert any("## Out of memory" in output["data"].get("text/markdown", "") for output in shown)
    assert any("| predicted peak |" in output["data"].get("text/markdown", "") for output in shown)
