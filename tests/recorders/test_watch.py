"""Warnings while a job runs: a leak with its line and an estimate that proves right, and silence on a healthy job."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.recorders.watching import StepSample, Watcher

LEAKS = """\
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = []
for step in range(10_000):
    loss = model(torch.ones(4096, 1024, device="cuda")).square()
    loss.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(loss.detach())
"""
HEALTHY = """\
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
cache = []
for step in range(60):
    batch = 16384 if step == 30 else 4096  # one longer batch
    if step < 12:
        cache.append(torch.empty(1 << 18, device="cuda"))  # a warm-up
    model(torch.ones(batch, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def warnings_of(tmp_path: Path, text: str, capacity: int) -> tuple[Any, list[dict[str, Any]]]:
    script = tmp_path / "train.py"
    script.write_text(text)
    seen: list[dict[str, Any]] = []
    result = run(
        RunSpec(
            script=str(script), run_dir=tmp_path / "out", gpu="t4", capacity_bytes=capacity, steps=0, watch=True,
            warn_at=0.95,
        ),
        lambda record: seen.append(dict(record)) if "warning" in record else None,
    )  # fmt: skip
    return result, seen


@pytest.mark.slow
def test_a_leak_is_told_with_its_line_and_the_steps_that_are_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the virtual GPU, which then does run out of memory: the estimate was right within a fifth."""
    result, seen = warnings_of(tmp_path, LEAKS, 4 << 30)
    assert result.out_of_memory
    leak = next(each for each in seen if each["warning"] == "leak")
    assert leak["location"] == "train.py:7"  # where the tensor that stays behind was made
    assert leak["bytes"] == 4096 * 1024 * 4
    really = result.steps - leak["step"]
    assert really > 50
    assert abs(leak["steps_left"] - really) <= 0.2 * really
    assert "at this rate out of memory in about" in capfd.readouterr().err


def test_a_healthy_job_with_a_warm_up_and_one_longer_batch_is_not_warned_of(tmp_path: Path) -> None:
    result, seen = warnings_of(tmp_path, HEALTHY, 4 << 30)
    assert (result.exit_status, result.steps, seen) == (0, 60, [])


def samples(live: list[int], peak_above: int = 0, reserved: int | None = None, total: int = 1000) -> list[StepSample]:
    out, peak = [], 0
    for step, each in enumerate(live, 1):
        peak = max(peak, each + peak_above)
        held = peak if reserved is None else reserved + 10 * step
        out.append(StepSample(step=step, live=each, peak=peak, reserved=held, free=total - held - 50, total=total))
    return out


def kinds(steps: list[StepSample], warn_at: float = 0.92) -> list[str]:
    watcher = Watcher(warn_at)
    return [warned.kind for step in steps for warned in watcher.step(step)]


@pytest.mark.parametrize(
    ("live", "told"),
    [
        ([100] * 40, []),
        ([100 + 4 * i for i in range(30)], ["leak"]),
        ([100 + 200 // (i + 1) for i in range(30)], []),  # falls
        ([round(200 * (1 - 0.7**i)) for i in range(30)], []),  # a cache that fills
        ([100 + 30 * (i % 3) for i in range(30)], []),  # up and down with the batch
        ([100, 100, 100, 400, *[100] * 30], []),
        ([100] * 20 + [100 + 5 * i for i in range(30)], ["leak"]),  # begins late
    ],
)
def test_what_counts_as_a_leak(live: list[int], told: list[str]) -> None:
    assert kinds(samples(live)) == told


def test_little_room_is_told_once() -> None:
    assert kinds(samples([870] * 10, peak_above=20)) == ["headroom"]  # 50 outside, 890 at the peak: 94 %
    assert kinds(samples([840] * 10, peak_above=20)) == []


def test_cached_memory_that_grows_and_is_of_no_use_is_told_once() -> None:
    assert kinds(samples([200] * 40, peak_above=50, reserved=300)) == ["fragmentation"]
    assert kinds(samples([200] * 40, peak_above=50)) == []


@pytest.mark.slow
def test_a_command_gets_the_facts_and_a_file_the_metrics(tmp_path: Path, oomdoc: Any) -> None:
    """`--on-warn` with JSON on stdin, `--metrics` in Prometheus' text format; without them nothing is watched."""
    (tmp_path / "train.py").write_text(LEAKS.replace("10_000", "40"))
    take = f"{sys.executable} -c \"import sys; open('facts.json', 'a').write(sys.stdin.read() + chr(10))\""
    words = ["--gpu", "t4", "--capacity", "4GiB", "--steps", "30", "--on-warn", take, "--metrics", "oomdoc.prom"]
    done = oomdoc("run", *words, "train.py")
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "facts.json").read_text().splitlines()[0])
    assert (facts["schema"], facts["warning"], facts["location"]) == ("oomdoc.warning/1", "leak", "train.py:7")
    text = (tmp_path / "oomdoc.prom").read_text()
    assert 'oomdoc_warnings_total{rank="0",kind="leak"} 1' in text
    for line in text.splitlines():
        assert line.startswith("# ") or re.match(r'oomdoc_\w+\{rank="0"(,\w+="\w+")?\} \d+$', line), line
    assert re.search(r'oomdoc_step\{rank="0"\} \d', text)
    assert len(set(re.findall(r"# TYPE (\w+)", text))) == len(re.findall(r"# TYPE (\w+)", text))
