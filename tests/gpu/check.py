"""`make gpu-check`: what only a GPU can show, as one prepared script of at most 8 minutes on one card.

    python tests/gpu/check.py [--seconds 480] [--json gpu-check.json]

Each check prints a row (what, expected, measured, verdict); all rows go to the JSON file. Exit status 1 when one fails.
Without a GPU it says so and ends with status 2; --fake runs every check on the tests' model of a device instead, which
proves the script and nothing about a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FAKE_FOLDER = HERE.parent / "recorders"
EXACT = ("parameter", "gradient", "optimizer_state")
OVERHEAD_BUDGET = 1.02  # of a step's time, at the size of GPT-2
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """`good` None: told, or not possible here."""

    check: str
    what: str
    expected: str
    measured: str
    good: bool | None
    seconds: float = 0.0


class Check:
    """What all checks share: the scripts, the device, and the clock."""

    def __init__(self, fake: bool, folder: Path, gpu: str | None) -> None:
        self.fake = fake
        self.folder = folder
        self.gpu = gpu  # a name of configs/gpus.yaml, for the virtual twin

    def environment(self, **more: str) -> dict[str, str]:
        env = {**os.environ, "NO_COLOR": "1", **more}
        if self.fake:
            paths = [str(FAKE_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
            env |= {"OOMDOC_ACCELERATOR": "fake_device:FakeDevice", "PYTHONPATH": os.pathsep.join(paths)}
        return env

    def oomdoc(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "oomdoc", *words]
        return subprocess.run(command, cwd=self.folder, env=self.environment(**more), capture_output=True, text=True)

    def script(self, name: str) -> str:
        """A script of `jobs/`; on the fake its device is the CPU and its model small."""
        return str(HERE / "jobs" / f"{name}.py")

    @property
    def words(self) -> tuple[str, ...]:
        return ("cpu", "small") if self.fake else ("cuda", "full")

    def record(self, name: str, out: str, *words: str, **more: str) -> tuple[Any, dict[str, Any], str]:
        """-> the profile of the run's one device, what the script measured of itself, and its stderr."""
        from oomdoc.diagnosers.profile import build
        from oomdoc.snapshots import reader

        done = self.oomdoc("run", "--real", "-o", out, self.script(name), *self.words, *words, **more)
        path = self.folder / out / "rank0.pickle"
        if not path.is_file():
            raise RuntimeError(f"{name}: nothing was recorded (status {done.returncode}): {done.stderr[-800:]}")
        measured = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
        facts = json.loads(measured[-1].removeprefix("MEASURED ")) if measured else {}
        [device] = build([reader.load(path)]).devices
        return device, facts, done.stderr


def categories(check: Check) -> list[Row]:
    """Bytes by identity against the script's own count, and the peak against torch's counters."""
    rows = []
    for name in ("gpt2", "convnet"):
        device, facts, _ = check.record(name, f"categories-{name}")
        held = {category.value: each.bytes for category, each in device.categories.items()}
        for category in EXACT:
            expected, found = facts[category], held.get(category, 0)
            rows.append(Row("categories", f"{name}: {category}", str(expected), str(found), expected == found))
        for what, expected, found in (
            ("max_memory_allocated", facts.get("max_allocated"), device.peak.allocated_bytes),
            ("max_memory_reserved", facts.get("max_reserved"), device.peak.reserved_bytes),
        ):
            good = None if expected is None else expected == found
            rows.append(Row("peak", f"{name}: {what}", str(expected), str(found), good))
        unknown = held.get("unknown", 0) / max(1, device.live_bytes)
        rows.append(Row("categories", f"{name}: unknown share", "< 5 %", f"{100 * unknown:.2f} %", unknown < 0.05))
        rows.append(Row("peak", f"{name}: start", "0", str(device.start_bytes), device.start_bytes == 0))
    return rows


def out_of_memory(check: Check) -> list[Row]:
    """Provoked: recorded at the failure, raised unchanged, told by the verdict."""
    rows = []
    for name in ("gpt2", "convnet"):
        device, _, error = check.record(name, f"oom-{name}", "oom", FAKE_DEVICE_BYTES=str(1 << 30))
        report = json.loads((check.folder / f"oom-{name}" / "report.json").read_text())
        verdict = report["verdict"]["out_of_memory"]
        where = device.oom.location if device.oom else None
        line = f"{Path(where.file).name}:{where.line}" if where else "unknown"
        rows += [
            Row("oom", f"{name}: verdict", "out of memory", str(verdict), verdict),
            Row("oom", f"{name}: the script's error", "OutOfMemoryError", "as raised", "OutOfMemoryError" in error),
            Row("oom", f"{name}: line", "of the job", line, where is not None and "tests/gpu" in where.file),
        ]
    return rows


def replays(check: Check) -> list[Row]:
    """The allocator's model on fresh traces: every address, under three settings."""
    rows = []
    for setting in ("", "expandable_segments:True", "max_split_size_mb:64"):
        out = f"replay-{setting.partition(':')[0] or 'default'}"
        conf = {} if check.fake else {"PYTORCH_CUDA_ALLOC_CONF": setting}
        check.record("gpt2", out, **conf)
        done = check.oomdoc("replay", str(check.folder / out / "rank0.pickle"), "--format", "json")
        replay = json.loads(done.stdout)["devices"][0]["replay"]
        expected, found = replay["alloc_events"], replay["matched_addresses"]
        good = expected == found and expected > 0
        what = setting or "default"
        rows.append(
            Row("replay", what if not check.fake else f"{what} (fake: default)", str(expected), str(found), good)
        )
    return rows


def virtual_twin(check: Check) -> list[Row]:
    """The same scripts on the virtual GPU: its peak against the real one."""
    rows = []
    if check.fake:
        return [Row("virtual", "peak against the real one", "", "needs a GPU", None)]
    for name in ("gpt2", "convnet"):
        real, _, _ = check.record(name, f"virtual-real-{name}")
        out = f"virtual-{name}"
        words = ["--gpu", check.gpu] if check.gpu else []
        done = check.oomdoc("run", "--virtual", *words, "-o", out, check.script(name), *check.words)
        report = json.loads((check.folder / out / "report.json").read_text()) if done.returncode == 0 else None
        if report is None:
            rows.append(Row("virtual", name, "a run", done.stderr[-300:], False))
            continue
        peak = report["devices"][0]["peak"]["allocated_bytes"]
        share = peak / real.peak.allocated_bytes - 1
        rows.append(
            Row(
                "virtual",
                f"{name}: peak",
                str(real.peak.allocated_bytes),
                f"{peak} ({100 * share:+.2f} %)",
                abs(share) < 0.03,
            )
        )
    return rows


def overhead(check: Check) -> list[Row]:
    """Step time with the recorder over that without, in turn, the better of several."""
    best: dict[str, float] = {}
    for _ in range(2 if check.fake else 3):
        plain = subprocess.run(
            [sys.executable, check.script("gpt2"), *check.words, "time"],
            cwd=check.folder, env=check.environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        _, recorded, _ = check.record("gpt2", "overhead", "time")
        for key, facts in (("plain", json.loads(plain.stdout.split("MEASURED ")[-1])), ("recorded", recorded)):
            best[key] = min(best.get(key, float("inf")), facts["step_seconds"])
    ratio = best["recorded"] / best["plain"]
    good = None if check.fake else ratio <= OVERHEAD_BUDGET
    note = " (fake: with its own tracing of every operation)" if check.fake else ""
    measured = f"{ratio:.3f} ({1e3 * best['plain']:.1f} ms a step){note}"
    return [Row("overhead", "step time, recorded over plain", f"<= {OVERHEAD_BUDGET}", measured, good)]


def remedies(check: Check) -> list[Row]:
    """Applied to the script as it runs; the peak falls by what the virtual GPU says, and the loss stays."""
    if check.fake:
        return [Row("remedies", "applied and measured", "", "needs a GPU", None)]
    rows = []
    before, facts, _ = check.record("gpt2", "remedy-none")
    for name, options in (("activation-checkpointing", "modules: [Block]"), ("mixed-precision", "dtype: bfloat16")):
        config = check.folder / f"{name}.yaml"
        config.write_text(f"schema: oomdoc.config/1\nremedies:\n  - {{name: {name}, {options}}}\n")
        done = check.oomdoc("run", "--real", "-o", name, "--apply", str(config), check.script("gpt2"), *check.words)
        report = json.loads((check.folder / name / "report.json").read_text()) if done.returncode == 0 else None
        if report is None:
            rows.append(Row("remedies", name, "a run", done.stderr[-300:], False))
            continue
        peak = report["devices"][0]["peak"]["allocated_bytes"]
        loss = json.loads(done.stdout.split("MEASURED ")[-1].splitlines()[0])["loss"]
        near = abs(loss - facts["loss"]) < 0.1 * abs(facts["loss"])
        measured = f"{peak}, loss {loss:.3f} (was {facts['loss']:.3f})"
        rows.append(
            Row(
                "remedies",
                name,
                f"< {before.peak.allocated_bytes}",
                measured,
                peak < before.peak.allocated_bytes and near,
            )
        )
    return rows


CHECKS: tuple[Callable[[Check], list[Row]], ...] = (
    categories, out_of_memory, replays, overhead, virtual_twin, remedies,
)  # fmt: skip


def run(check: Check, seconds: float) -> list[Row]:
    """Every check that the time allows; one that breaks is a row, and the others go on."""
    began = time.monotonic()
    rows: list[Row] = []
    for each in CHECKS:
        start = time.monotonic()
        if start - began > seconds:
            rows.append(Row(each.__name__, "", "", f"not run: {seconds:.0f} s were over", None))
            continue
        try:
            found = each(check)
        except Exception as error:
            found = [Row(each.__name__, "the check itself", "", f"{type(error).__name__}: {error}", False)]
        took = time.monotonic() - start
        rows += [Row(**{**asdict(row), "seconds": round(took / len(found), 1)}) for row in found]
    return rows


def table(rows: list[Row]) -> str:
    marks = {True: "ok", False: "FAIL", None: "-"}
    head = ("check", "what", "expected", "measured", "")
    lines = [head, *((r.check, r.what, r.expected, r.measured, marks[r.good]) for r in rows)]
    wide = [min(46, max(len(line[i]) for line in lines)) for i in range(5)]
    return "\n".join(
        "  ".join(cell[:46].ljust(width) for cell, width in zip(line, wide, strict=True)).rstrip() for line in lines
    )


def card() -> tuple[str | None, str | None]:
    """(the card's name, its name in configs/gpus.yaml) through torch, after oomdoc's own look at NVML."""
    from oomdoc.configs.loader import gpus
    from oomdoc.recorders.nvml import cards

    found = cards()
    if isinstance(found, str):
        return None, None
    title = found[0].name
    known = [name for name, spec in gpus().items() if spec.title and spec.title == title]
    return title, known[0] if known else None


def main() -> int:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--fake", action="store_true")
    words = parser.parse_args()
    name, gpu = ("the tests' model of a device", None) if words.fake else card()
    if name is None:
        print("no GPU here: nothing was checked (--fake proves the script)")
        return 2
    import torch

    with tempfile.TemporaryDirectory(prefix="oomdoc-gpu-") as folder:
        rows = run(Check(words.fake, Path(folder), gpu), words.seconds)
    failed = [row for row in rows if row.good is False]
    held = sum(row.good is True for row in rows)
    print(f"{name}, torch {torch.__version__}\n\n{table(rows)}\n")
    print(f"{held} rows hold, {len(failed)} fail, {len(rows) - held - len(failed)} cannot be judged here")
    content = {"schema": "oomdoc.gpu-check/1", "device": name, "fake": words.fake, "torch": str(torch.__version__)}
    words.json.write_text(json.dumps({**content, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
