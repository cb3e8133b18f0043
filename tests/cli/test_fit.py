"""`oomdoc fit`: the largest value that a script takes on a card."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "fit.schema.json").read_text())

# One sample in 400 is ten times as long as the others; the collate function pads to the longest.
TRAIN = """
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH", 1)))
batch = parser.parse_args().batch_size
if batch > 90:
    raise ValueError("no batch of more than 90")
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
lengths = [640 if index == 333 else 64 for index in range(400)]
rows = [torch.ones(length, 64) for length in lengths]
pad = lambda batch: torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
for x in torch.utils.data.DataLoader(rows, batch_size=batch, shuffle=True, collate_fn=pad):
    model(x.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _fit(oomdoc: Run, folder: Path, *arguments: str) -> dict[str, Any]:
    (folder / "train.py").write_text(TRAIN)
    done = oomdoc("fit", "--format", "json", "--gpu", "a100-40gb", *arguments)
    content: dict[str, Any] = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(content)
    assert done.returncode == 0, done.stderr
    return content


@pytest.mark.slow
def test_the_largest_batch_holds_with_the_longest_sample(oomdoc: Run, tmp_path: Path) -> None:
    """The option behind the script, where the argument goes; the value found runs, the next one does not."""
    capacity = ("--capacity", "1100MiB")
    found = _fit(oomdoc, tmp_path, *capacity, "train.py", "--vary", "--batch-size={}", "4,12,48")
    (row,) = found["rows"]
    assert row["largest"] == 12
    assert row["monotone"]
    assert row["largest_batch"] == {"loader": True, "samples": 400, "read": 400, "uniform": False}
    outcomes = {probe["value"]: probe["outcome"] for probe in row["probes"]}
    assert outcomes[row["largest"]] == "fits"
    assert outcomes[48] == "out of memory"
    # padded to 640: ReLU's input and output of 4096 features, kept for backward
    assert row["peak_allocated_bytes"] > 2 * row["largest"] * 640 * 4096 * 4
    kept = list(tmp_path.glob(".oomdoc/fit-train-*/*/*/rank0.pickle"))
    assert [path.parent.name for path in kept] == [str(row["largest"])]
    assert not (tmp_path / ".oomdoc" / "latest").exists()


@pytest.mark.slow
def test_a_value_that_the_script_refuses_is_no_out_of_memory(oomdoc: Run, tmp_path: Path) -> None:
    """An environment variable; the bound is the script's own, and said to be."""
    found = _fit(oomdoc, tmp_path, "--vary", "BATCH={}", "64,80,96", "train.py")
    (row,) = found["rows"]
    assert row["largest"] == 80
    assert any("96 failed for another reason than memory" in note for note in row["notes"])
    assert any("no batch of more than 90" in note for note in row["notes"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train.py",), "say what to vary"),
        (("--vary", "--batch-size", "1..4", "train.py"), "has no {} for the value"),
        (("--vary", "--batch-size={}", "4..1", "train.py"), "has no value"),
        (("--vary", "--batch-size={}", "many", "train.py"), "is no range"),
        (("train.py", "--vary", "--batch-size={}"), "takes two words"),
        (("--ranks", "x", "--vary", "-b={}", "1..2", "train.py"), "--ranks takes numbers"),
        (("--vary", "-b={}", "1..2", "none.py"), "there is no file none.py"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(
    oomdoc: Run, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('ran')")
    done = oomdoc("fit", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / ".oomdoc").exists()
