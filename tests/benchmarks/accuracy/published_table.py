"""Published memory figures of training runs, each by a script of jobs/ on the card and torch of the publication.

A run that no script here expresses stands below the table with the reason.
"""

import csv
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from page import GIB, MIB, made, shared, standing, table

JOBS = Path(__file__).resolve().parents[1] / "jobs"
UNITS = {"GiB": GIB, "GB": 10**9, "MiB": MIB, "bytes": 1}
LLAMA = "llama.py --size 8b --fsdp --recompute"
# What CUDA held on the A100-40GB of itu-rad/GPUMemNet, from a network that is in no table (see timm_table).
GPUMEMNET = "--gpu a100-40gb --cuda-context 1667MiB --target-torch 2.4"
H100 = "--gpu h100-80gb --target-torch 2.6"
CONSUMER = "--gpu rtx-4090 --target-torch 2.4"
RTX_4090 = "--gpu rtx-4090 --target-torch 2.5"
A6000 = "--gpu rtx-a6000 --target-torch 2.5"
TITAN = "--gpu h100-80gb --target-torch 2.6 --capacity 96GiB --nproc-per-node 8"
V100 = "--gpu v100-16gb --target-torch 2.0 --cuda-context 1343MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One published run as a command line. `figure`: allocated, reserved, or device (reserved and context)."""

    options: str
    script: str
    figure: str
    unit: str | None = None  # where the published label is another one than what was measured
    note: str = ""


def _attention(length: int, width: int) -> Job:
    return Job(
        options="--gpu a100-80gb-pcie", script=f"attention.py --length {length} --width {width}", figure="allocated"
    )


def _vision(model: str, batch: int, note: str = "") -> Job:
    return Job(options=GPUMEMNET, script=f"vision.py --model {model} --batch {batch}", figure="device", note=note)


ONE_PIXEL = "filters of one pixel are taken to convert nothing; +7.7 % if cuDNN's first choice is taken for them"
BEFORE_TORCH_2 = "torch 1.10, older than --target-torch goes"
LENGTH_TAKEN = "its micro-batch is not published: 1 x 4096 is taken"
TORCHTUNE = "--gpu a100-80gb --target-torch 2.5"
# The commands of torchtune's README at its commit 1814feb17 (November 2024: rows 12 to 18) and 30b8519e8 (September: 1
# to 5), with the settings of its configs then; what they leave open is in the notes.
TUNE = "torchtune_recipe.py --length 4096 --compile --recompute --offload"
TUNE_8B = "torchtune_recipe.py --family llama3_1 --length 2048 --compile"
IN_BACKWARD = "--model llama3_1_8b --in-backward --optimizer bnb-paged-8bit"
QUERIES = "--on q_proj,v_proj --no-mlp"
NOT_RECOMPUTED = "whether it recomputes is not published: it is taken not to"
RECOMPUTED = "whether it also moves activations to the host is not published: it is taken not to (+0.9 % if it does)"
# torchtitan as torchao's documentation ran it in 2025: its run_train.sh asks for expandable segments (since a5e57e4a9,
# October 2024), and at 6fc499f6 (August 2025, row 54) the loss is compiled as well
EXPANDABLE = "--nproc-per-node 8 --alloc-conf expandable_segments:True"
B200 = f"--gpu b200 --target-torch 2.9 {EXPANDABLE}"
FLOAT8 = "--compile --float8 gathered"
VIT_G = "vision.py --model vit_giant_patch14_dinov2 --batch 32 --classes 45 --optimizer adam-fused --recompute"
LLAMA_3B = "llama.py --size 3b --bf16 --length 4096 --batch 2 --fused --compile --loss-chunks 8"
RUNS: dict[int, Job] = {
    1: Job(
        options=RTX_4090,
        script=f"{TUNE_8B} {IN_BACKWARD} --recompute",
        figure="allocated",
        note=RECOMPUTED,
    ),
    2: Job(options=A6000, script=f"{TUNE_8B} {IN_BACKWARD}", figure="allocated", note=NOT_RECOMPUTED),
    4: Job(
        options=A6000, script=f"{TUNE_8B} --model lora_llama3_1_8b {QUERIES}", figure="allocated", note=NOT_RECOMPUTED
    ),
    5: Job(
        options=RTX_4090,
        script=f"{TUNE_8B} --model qlora_llama3_1_8b --on q_proj,v_proj,k_proj,output_proj --recompute",
        figure="allocated",
    ),
    12: Job(options=TORCHTUNE, script=LLAMA_3B, figure="allocated"),
    14: Job(options=TORCHTUNE, script=f"{LLAMA_3B} --recompute full --in-backward", figure="allocated"),
    16: Job(
        options=TORCHTUNE,
        script=f"{TUNE} --in-backward --optimizer bnb-8bit",
        figure="allocated",
        note="which 8-bit AdamW is not published; what is missing is as much as the embedding in float",
    ),
    17: Job(options=TORCHTUNE, script=f"{TUNE} --model lora_llama3_2_3b --rank 64", figure="allocated"),
    18: Job(options=TORCHTUNE, script=f"{TUNE} --model qlora_llama3_2_3b --rank 64", figure="allocated"),
    23: Job(
        options=TORCHTUNE,
        script=f"torchtune_recipe.py --family llama2 --model lora_llama2_7b {QUERIES} --steps 0",
        figure="allocated",
    ),
    24: Job(
        options=TORCHTUNE, script="torchtune_recipe.py --model lora_llama3_2_3b --rank 64 --steps 0", figure="allocated"
    ),
    26: Job(options=TITAN, script=f"{LLAMA} ops --length 8192 --batch 2 --compile", figure="reserved"),
    28: Job(options=f"{TITAN} --nnodes 16", script=f"{LLAMA} ops --length 8192 --batch 2", figure="reserved"),
    29: Job(options=f"{TITAN} --nnodes 16", script=f"{LLAMA} ops --length 8192 --batch 2 --compile", figure="reserved"),
    31: Job(options=TITAN, script=f"{LLAMA} full --length 32768 --batch 1 {FLOAT8}", figure="reserved"),
    43: Job(
        options="--gpu h200 --target-torch 2.8 --nproc-per-node 8 --nnodes 4",
        script=f"{LLAMA} ops --length 8192 --batch 2 {FLOAT8} --compile-loss",
        figure="reserved",
    ),
    49: Job(
        options=f"{H100} --capacity 96GiB {EXPANDABLE}",
        script=f"{LLAMA} ops --length 8192 --batch 1 {FLOAT8}",
        figure="reserved",
        unit="GiB",
    ),
    54: Job(
        options=B200,
        script=f"{LLAMA} ops --length 8192 --batch 1 {FLOAT8} --compile-loss",
        figure="reserved",
        unit="GiB",
    ),
    64: Job(
        options=f"{H100} {EXPANDABLE}",
        script=f"{LLAMA} full --length 4096 --batch 1 --compile --float8 local",
        figure="reserved",
        unit="GiB",
        note=LENGTH_TAKEN,
    ),
    **{
        number: Job(
            options=f"{H100} {EXPANDABLE}",
            script=f"{LLAMA} {how} --length 4096 --batch 1",
            figure="reserved",
            unit="GiB",
            note=LENGTH_TAKEN,
        )
        for number, how in ((56, "none"), (59, "second"), (62, "full"))
    },
    65: Job(
        options=CONSUMER,
        script="vision.py --model vit_huge_patch14_224 --batch 8 --optimizer adamw-fused --precision autocast",
        figure="allocated",
        note="published under torch.compile, run eagerly here",
    ),
    74: Job(
        options=CONSUMER,
        script="vision.py --model vit_giant_patch14_dinov2 --batch 32 --optimizer adam-fused "
        "--precision bf16 --recompute",
        figure="allocated",
    ),
    76: Job(options=CONSUMER, script=f"{VIT_G} --precision bf16 --offload states", figure="allocated"),
    78: Job(options=CONSUMER, script=f"{VIT_G} --precision bf16 --compile", figure="allocated"),
    79: Job(
        options=CONSUMER,
        script=f"{VIT_G} --precision bf16 --offload states --compile",
        figure="allocated",
        note="compiled as one graph: what that adds to the same run without is not modelled",
    ),
    80: Job(options=CONSUMER, script=f"{VIT_G} --precision autocast --offload states", figure="allocated"),
    83: Job(options=V100, script="bert_trainer.py --batch 4", figure="device", note=BEFORE_TORCH_2),
    84: Job(options=V100, script="bert_trainer.py --batch 1 --accumulate 4", figure="device", note=BEFORE_TORCH_2),
    88: Job(options=V100, script="bert_trainer.py --batch 4 --optim adafactor", figure="device", note=BEFORE_TORCH_2),
    208: _attention(1024, 16),
    209: _attention(4096, 16),
    210: _attention(8192, 16),
    212: _attention(256, 32),
    215: _attention(8192, 32),
    216: _attention(16384, 32),
    219: _attention(4096, 64),
    220: _attention(8192, 64),
    224: _attention(4096, 128),
    226: _attention(16384, 128),
    232: _vision("vgg16", 64),
    234: _vision("resnet50", 32),
    236: _vision("resnet50", 128),
    237: _vision("xception", 32, ONE_PIXEL),
    240: _vision("mobilenetv2_100", 128),
    241: _vision("efficientnet_b0", 32),
    242: _vision("efficientnet_b0", 128),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A published run beside its virtual one, in bytes; `predicted` is None where no script expresses it."""

    number: int
    what: str
    published: float
    predicted: int | None
    note: str
    anew: bool = True
    stood: str = ""  # the error as the page had it, before its figures were rounded

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.published - 1


def reason(row: dict[str, str]) -> str:
    """Why no script of the project expresses this run."""
    if row["measured_peak"].startswith("OOM"):
        return "ended out of memory: there is no figure"
    text = " ".join(value for name, value in row.items() if name != "source").lower()
    for words, why in (
        (("alpaca", "wikitext", "(max)", "max 768", "twitter"), "what its batches hold is not published"),
        (("mi300",), "a card that is not NVIDIA's"),
        (("fp8", "float8", "nvfp4"), "float8 by a recipe, or over a mesh, for which no script is written here"),
        (("8bit", "8-bit", "nf4", "qlora"), "quantised training, for which no script is written here"),
    ):
        if any(word in text for word in words):
            return why
    return "its script is another project's, and not written anew here"


def rows(only: Iterable[int] = ()) -> list[Row]:
    """All runs; with `only`, these anew and the others as they stand in the page."""
    with (shared() / "data" / "published_peaks.csv").open() as stream:
        published = list(csv.DictReader(stream))
    wanted = set(only) or set(RUNS)
    cells = [line.strip("| ").split(" | ") for line in standing("published").splitlines() if line.startswith("| ")]
    before = {int(each[0]): each for each in cells if each[0].isdigit()}
    return [_row(each, None if int(each["id"]) in wanted else before.get(int(each["id"]))) for each in published]


def _row(row: dict[str, str], before: list[str] | None) -> Row:
    number, job = int(row["id"]), RUNS.get(int(row["id"]))
    what = f"{row['model']}, {row['seq_len']} x {row['micro_batch']}, {row['precision']}, {row['gpu_type']}"
    if job is None:
        return Row(number, what, 0.0, None, reason(row), anew=False)
    if before is not None:
        return Row(number, what, float(before[2]) * GIB, round(float(before[3]) * GIB), job.note, False, before[4])
    unit = job.unit or re.split(r"[ (]", row["unit"])[0]
    predicted = run(job)
    found = f"published {row['measured_peak']} {unit}, predicted {predicted / UNITS[unit]:.3f}"
    print(f"{number} {what}: {found}", file=sys.stderr, flush=True)  # noqa: T201
    return Row(number, what, float(row["measured_peak"]) * UNITS[unit], predicted, job.note)


def run(job: Job) -> int:
    """The figure of a virtual run, in bytes, from the report that users get."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        script, *args = job.script.split()
        command = [sys.executable, "-m", "oomdoc", "run", *job.options.split(), "--steps", "100", "-o", folder]
        command += ["--format", "json", "--output", str(report), str(JOBS / script), *args]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{job.script} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        [device] = json.loads(report.read_text())["devices"]
        peak = device["peak"]
        if job.figure == "device":
            return int(peak["reserved_bytes"]) + int(device["outside_bytes"])
        return int(peak[f"{job.figure}_bytes"])


def summary(found: list[Row]) -> dict[str, float]:
    errors = [abs(row.error) for row in found if row.error is not None]
    return {
        "runs": len(errors),
        "within 5 %": sum(error <= 0.05 for error in errors),
        "explained": sum(row.error is None for row in found),
    }


def _made(found: list[Row]) -> str:
    if all(row.anew for row in found if row.predicted is not None):
        return made()
    date = re.sub(r"Made on (\S+).*", r"\1", made())
    anew = ", ".join(str(row.number) for row in found if row.anew)
    return f"{standing('published').splitlines()[0].rstrip('.')}; rows {anew} on {date}."


def section(found: list[Row]) -> str:
    head = ("row", "run", "published GiB", "predicted GiB", "error", "note")
    lines = [
        (
            row.number,
            row.what,
            f"{row.published / GIB:.3f}",
            f"{row.predicted / GIB:.3f}",
            row.stood or f"{100 * row.error:+.1f} %",
            row.note,
        )
        for row in found
        if row.predicted is not None and row.error is not None
    ]
    why = defaultdict(list)
    for row in found:
        if row.predicted is None:
            why[row.note].append(str(row.number))
    rest = [(cause, ", ".join(numbers)) for cause, numbers in sorted(why.items())]
    left = table(("why", "rows"), rest, text_columns=2)
    return "\n\n".join([_made(found), table(head, lines, text_columns=2), "Rows that no script here expresses:", left])
