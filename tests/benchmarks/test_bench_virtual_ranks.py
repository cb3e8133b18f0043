"""How fast one rank of many is: Llama-3 under FSDP2 as users write it, at 8 billion and 405 billion parameters.

The steady step is measured beside one of the same model on torch's own `meta` device, without sharding and without
oomdoc. The whole command's time and the memory of the recording per event are told.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parent / "jobs" / "llama_fsdp2.py"
MOST_BYTES_PER_EVENT = 1024


def measured(folder: Path, size: str, nodes: int) -> dict[str, float]:
    """CPU seconds: of a steady step (the fastest, told by the script) and of the whole command."""
    told = folder / "told.json"
    command = [
        sys.executable, "-m", "oomdoc", "run", "--virtual", "--gpu", "h100-80gb", "--nproc-per-node", "8",
        "--nnodes", str(nodes), "--rank", "0", "--steps", "4", "-o", str(folder / "run"), "--format", "json",
        "--output", str(folder / "report.json"), str(JOB), size, str(told),
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(told.read_text()), "command_s": seconds, "wall_s": wall}


def on_meta(folder: Path, size: str) -> float:
    """CPU seconds of the fastest steady step of the whole model on `meta`."""
    told = folder / "meta.json"
    subprocess.run([sys.executable, str(JOB), size, str(told), "meta"], check=True, capture_output=True)
    step_s: float = json.loads(told.read_text())["step_s"]
    return step_s


@pytest.mark.slow
@pytest.mark.parametrize(("size", "nodes"), [("8b", 8), ("405b", 512)])
def test_a_rank_of_many(size: str, nodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    found, meta = measured(tmp_path, size, nodes), on_meta(tmp_path, size)
    with capsys.disabled():
        print(  # noqa: T201
            f"\nLlama-3-{size} as rank 0 of {8 * nodes}: step {found['step_s']:.2f} CPU s, {meta:.2f} whole on meta; "
            f"command {found['command_s']:.1f} CPU s ({found['wall_s']:.1f} s), {found['events']:.0f} events, "
            f"{found['bytes_per_event']:.0f} bytes of memory per event"
        )
    assert found["step_s"] <= meta
    assert found["bytes_per_event"] <= MOST_BYTES_PER_EVENT
