"""Each remedy on an unmodified script that really trains on this CPU: what happens to its losses."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Run:
    status: int
    losses: list[float]
    rows: list[dict[str, Any]]
    end: dict[str, Any]
    talk: dict[str, Any]
    stderr: str


def _read(status: int, outputs: list[str], stderr: str) -> Run:
    """`outputs` by rank; rows are interleaved: step by step, rank by rank."""
    ranks = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out in outputs]
    rows = [row for step in zip(*([r for r in rank if "loss" in r] for rank in ranks), strict=True) for row in step]
    end = next((line for line in ranks[0] if "eval" in line), {})
    talk = next((line for line in ranks[0] if "notes" in line), {})
    return Run(status, [row["loss"] for row in rows], rows, end, talk, stderr)


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with torch loaded that runs each job in a fork of its own."""
    command = [sys.executable, str(SCRIPTS / "apply.py"), "--serve"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def train(server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Run the script with the remedies given (none: as it is), once for each set of arguments."""

    @functools.cache
    def alone(settings: str, script: str, args: tuple[str, ...]) -> Run:
        out, err = (tmp_path_factory.mktemp("run") / name for name in ("out", "err"))
        path = str(SCRIPTS / script)
        job = {"settings": json.loads(settings), "script": path, "args": args, "stdout": str(out), "stderr": str(err)}
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        return _read(int(server.stdout.readline()), [out.read_text()], err.read_text())

    @functools.cache
    def under_torchrun(settings: str, script: str, args: tuple[str, ...], ranks: int) -> Run:
        folder = tmp_path_factory.mktemp("run")
        (folder / "settings.json").write_text(settings)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [*launch, "--redirects=1", f"--log-dir={folder}", "--no-python", sys.executable]
        command += [str(SCRIPTS / "apply.py"), str(folder / "settings.json"), str(SCRIPTS / script), *args]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        logs = sorted(folder.glob("**/stdout.log"), key=lambda log: int(log.parent.name))
        return _read(done.returncode, [log.read_text() for log in logs], done.stderr)

    def of(*settings: dict[str, Any], args: tuple[str, ...] = (), ranks: int = 1, script: str = "train_lm.py") -> Run:
        text = json.dumps(settings)
        return alone(text, script, args) if ranks == 1 else under_torchrun(text, script, args, ranks)

    return of


def _grouped(run: Run, per_step: int) -> list[float]:
    """The loss of each whole batch: the mean over its pieces."""
    rows = [run.rows[i : i + per_step] for i in range(0, len(run.rows), per_step)]
    return [sum(r["loss"] * r["samples"] for r in row) / sum(r["samples"] for r in row) for row in rows]


def test_checkpointing_keeps_every_bit_of_the_losses_with_dropout(train: Callable[..., Run]) -> None:
    plain = train(args=("--dropout", "0.2"))
    remedied = train({"name": "activation-checkpointing", "modules": ["Block"]}, args=("--dropout", "0.2"))
    assert len(plain.losses) == 6
    assert remedied.losses == plain.losses
    assert remedied.end == plain.end
    assert remedied.end["same_names"]
    assert remedied.talk == {"notes": [], "unapplied": []}


def test_checkpointing_chooses_the_repeated_blocks_by_itself(train: Callable[..., Run]) -> None:
    plain = train()
    remedied = train({"name": "activation-checkpointing", "every": 2})
    assert remedied.losses == plain.losses
    assert remedied.talk["unapplied"] == []


def test_accumulation_gives_the_losses_of_the_whole_batch(train: Callable[..., Run]) -> None:
    plain = train()
    remedied = train({"name": "gradient-accumulation", "micro_batches": 4})
    assert [row["samples"] for row in remedied.rows] == [2] * 24
    assert _grouped(remedied, 4) == pytest.approx(plain.losses, rel=2e-6)
    assert remedied.end["lr"] == plain.end["lr"]
    assert remedied.end["eval"] == pytest.approx(plain.end["eval"], rel=2e-5)


def test_accumulation_weighs_uneven_micro_batches_and_sums(train: Callable[..., Run]) -> None:
    uneven = train(args=("--batch-size", "5"))
    cut = train({"name": "gradient-accumulation", "micro_batches": 2}, args=("--batch-size", "5"))
    assert [row["samples"] for row in cut.rows[:2]] == [2, 3]
    assert _grouped(cut, 2) == pytest.approx(uneven.losses, rel=2e-6)
    summed = train(args=("--reduction", "sum"))
    cut = train({"name": "gradient-accumulation", "micro_batches": 2}, args=("--reduction", "sum"))
    pairs = [a["loss"] + b["loss"] for a, b in zip(cut.rows[::2], cut.rows[1::2], strict=True)]
    assert pairs == pytest.approx(summed.losses, rel=2e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_optimizer_state_offload_keeps_every_bit_of_the_losses(train: Callable[..., Run], optimizer: str) -> None:
    plain = train(args=("--optimizer", optimizer))
    remedied = train({"name": "cpu-offload", "what": ["optimizer_state"]}, args=("--optimizer", optimizer))
    assert len(plain.losses) == 6
    assert remedied.losses == plain.losses
    assert remedied.end == plain.end
    assert remedied.talk["unapplied"] == []


def test_activation_offload_keeps_every_bit_of_the_losses(train: Callable[..., Run]) -> None:
    plain = train(args=("--dropout", "0.1"))
    remedied = train({"name": "cpu-offload", "what": ["activations"], "min_bytes": 4096}, args=("--dropout", "0.1"))
    assert remedied.losses == plain.losses
    assert remedied.talk["unapplied"] == []


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.02), ("float16", 0.005)])
def test_mixed_precision_stays_within_the_precision_of_its_type(
    train: Callable[..., Run], dtype: str, tolerance: float
) -> None:
    plain = train()
    remedied = train({"name": "mixed-precision", "dtype": dtype})
    assert {row["dtype"] for row in remedied.rows} == {f"torch.{dtype}"}
    assert remedied.losses != plain.losses
    assert remedied.losses == pytest.approx(plain.losses, rel=tolerance)
    assert remedied.end["lr"] == plain.end["lr"]


def test_fsdp_on_two_ranks_gives_the_losses_of_one(train: Callable[..., Run]) -> None:
    plain = train()
    remedied = train({"name": "fsdp", "wrap": ["Block"]}, ranks=2)
    assert remedied.status == 0, remedied.stderr
    assert [row["samples"] for row in remedied.rows] == [4] * 12
    assert _grouped(remedied, 2) == pytest.approx(plain.losses, rel=2e-6)
    assert remedied.end["eval"] == pytest.approx(plain.end["eval"], rel=2e-5)


@pytest.mark.slow
def test_fsdp_with_accumulation_checkpointing_and_offload(train: Callable[..., Run]) -> None:
    plain = train()
    remedied = train(
        {"name": "fsdp", "wrap": ["Block"], "reshard_after_forward": False},
        {"name": "gradient-accumulation", "micro_batches": 2},
        {"name": "activation-checkpointing", "modules": ["Block"]},
        {"name": "cpu-offload", "what": ["optimizer_state"]},
        ranks=2,
    )
    assert remedied.status == 0, remedied.stderr
    assert _grouped(remedied, 4) == pytest.approx(plain.losses, rel=2e-6)


def test_evaluation_without_a_graph_keeps_every_bit_of_the_losses(train: Callable[..., Run]) -> None:
    """Also one that stands between two training steps, with dropout."""
    args = ("--evaluate", "with_graph", "--dropout", "0.2")
    plain, remedied = train(args=args), train({"name": "no-grad-evaluation"}, args=args)
    assert len(plain.losses) == 6
    assert remedied.losses == plain.losses
    assert remedied.end == plain.end
    assert remedied.talk == {"notes": [], "unapplied": []}
    never = train({"name": "no-grad-evaluation"})
    assert "no model was called in eval mode with gradients enabled" in never.talk["unapplied"][0]


@pytest.mark.slow
def test_fsdp_leaves_the_batches_of_a_distributed_sampler_to_it(train: Callable[..., Run]) -> None:
    """Each rank accumulates over its own batch; the gradient is that of all of them, which SGD shows at once."""
    plain = train(args=("--in-order", "--optimizer", "sgd"))
    remedied = train(
        {"name": "fsdp", "wrap": ["Block"]},
        {"name": "gradient-accumulation", "micro_batches": 2},
        args=("--own-sampler", "--optimizer", "sgd"),
        ranks=2,
    )
    assert remedied.status == 0, remedied.stderr
    assert [row["samples"] for row in remedied.rows] == [2] * 24
    assert _grouped(remedied, 4) == pytest.approx(plain.losses, rel=2e-6)


@pytest.mark.slow
def test_fsdp_takes_a_channels_last_model(train: Callable[..., Run]) -> None:
    plain = train(args=("--channels-last",))
    remedied = train({"name": "fsdp", "wrap": ["Block"]}, args=("--channels-last",), ranks=2)
    assert remedied.status == 0, remedied.stderr
    # the convolution takes another algorithm for another memory format of its weight
    assert _grouped(remedied, 2) == pytest.approx(plain.losses, rel=2e-5)
    assert "stem.weight was made contiguous" in " ".join(remedied.talk["notes"])


@pytest.mark.parametrize(
    ("setting", "args", "reason"),
    [
        ({"name": "no-grad-evaluation"}, ("--evaluate", "left_on"), "it trains in eval mode"),
        ({"name": "gradient-accumulation", "micro_batches": 2}, ("--no-loader",), "DataLoader"),
        ({"name": "gradient-accumulation", "micro_batches": 2}, ("--accumulate", "2"), "accumulates gradients itself"),
        ({"name": "gradient-accumulation", "micro_batches": 2}, ("--zero-by-hand",), "by hand"),
        ({"name": "mixed-precision", "dtype": "bfloat16"}, ("--autocast",), "already"),
        ({"name": "activation-checkpointing", "modules": ["Blok"]}, (), "repeated blocks here: Block"),
        ({"name": "cpu-offload", "what": ["optimizer_state"]}, ("--optimizer", "lbfgs"), "LBFGS"),
        ({"name": "fsdp", "wrap": ["Block"]}, (), "at least two ranks"),
        ({"name": "chunked-loss"}, (), "cannot be applied at run time"),
        ({"name": "fsdp", "wrapp": ["Block"]}, (), "no option wrapp"),
    ],
)
def test_a_remedy_that_does_not_fit_the_script_says_why(
    train: Callable[..., Run], setting: dict[str, Any], args: tuple[str, ...], reason: str
) -> None:
    run = train(setting, args=args)
    assert run.status != 0
    assert "CannotApplyError" in run.stderr
    assert reason in run.stderr


BY_HAND = ("--device", "cpu", "--width", "64", "--depth", "2", "--length", "32", "--batch-size", "4", "--vocab", "256")


@pytest.mark.parametrize(
    ("args", "ranks", "tolerance"),
    [
        (("--spare", "cpu"), 1, 0.0),
        (("--step-in-backward",), 1, 0.0),
        (("--no-foreach",), 1, 2e-6),
        (("--fused",), 1, 2e-6),
        (("--chunks", "4"), 1, 2e-6),
        (("--eight-bit",), 1, 2e-4),  # moments of 8 bits: the card says equivalent, not identical
        pytest.param(("--ddp", "--bucket-view"), 2, 2e-6, marks=pytest.mark.slow),
        pytest.param(("--ddp", "--zero-1"), 2, 2e-6, marks=pytest.mark.slow),
        pytest.param(("--fsdp2", "root"), 2, 2e-6, marks=pytest.mark.slow),
        pytest.param(("--fsdp2", "blocks", "--replicas", "2"), 2, 2e-6, marks=pytest.mark.slow),
        pytest.param(("--fsdp2", "blocks", "--offload"), 2, 2e-6, marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_changed_by_hand_keeps_the_losses(
    train: Callable[..., Run], args: tuple[str, ...], ranks: int, tolerance: float
) -> None:
    plain = train(args=BY_HAND, script="train_by_hand.py")
    changed = train(args=(*BY_HAND, *args), ranks=ranks, script="train_by_hand.py")
    assert changed.status == 0, changed.stderr
    assert len(plain.losses) == 3
    assert _grouped(changed, ranks) == pytest.approx(plain.losses, rel=tolerance, abs=0)


def test_batch_statistics_are_said_to_change_the_training(train: Callable[..., Run]) -> None:
    run = train({"name": "gradient-accumulation", "micro_batches": 2}, args=("--batch-norm",))
    assert run.status == 0
    assert any("batch normalisation" in note for note in run.talk["notes"])
