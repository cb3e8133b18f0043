"""Known cases of running out of memory, as small scripts on the virtual GPU: first finding, its line, first remedy.

Case numbers (C25) are those of the collection of real reports that the scripts were reduced from.
"""

import gc
import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from oomdoc.diagnosers.diagnose import diagnose  # noqa: E402  (torch may be absent)
from oomdoc.diagnosers.interface import Category, Diagnosis, Finding, Severity  # noqa: E402
from oomdoc.diagnosers.profile import build  # noqa: E402
from oomdoc.recorders.virtual.device import GpuTarget  # noqa: E402
from oomdoc.recorders.virtual.session import virtual_session  # noqa: E402
from oomdoc.snapshots.model import Snapshot  # noqa: E402

JOBS = Path(__file__).resolve().parent / "jobs"
MIB = 1 << 20


@cache
def record(name: str, capacity_mib: int) -> Snapshot:
    target = GpuTarget(
        name="test-gpu",
        total_bytes=(capacity_mib + 500) * MIB,
        context_bytes=500 * MIB,
        sm_count=108,
        threads_per_sm=2048,
        compute_capability=(8, 0),
    )
    gc.collect()  # tensors of an earlier script that sit in cycles
    with virtual_session(target) as session:
        try:
            runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
        except torch.OutOfMemoryError:
            return session.snapshot()
        return session.snapshot()


def diagnosis(name: str, capacity_mib: int) -> Diagnosis:
    return diagnose(build([record(name, capacity_mib)]))


def line_here(name: str) -> int:
    lines = (JOBS / f"{name}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("# here"))


def told(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(finding.code, finding.title) for finding in findings]


# script, MiB of the card, first finding, first remedy; the line is that of "# here" where there is one
CASES = [
    ("vocabulary", 1700, "OOM001", "mixed-precision"),
    ("adam_second_step", 2600, "OOM003", "cpu-offload"),
    ("foreach_step", 2450, "OOM007", "fused-optimizer"),
    ("late_zero_grad", 128, "OOM022", "zero-grad-early"),
    ("stashed_gradients", 220, "OOM002", "mixed-precision"),
    ("logits", 1300, "OOM008", "chunked-loss"),
    ("scores", 3000, "OOM009", "flash-attention"),
    ("activations", 1600, "OOM004", "activation-checkpointing"),
    ("validation_loss", 40_000, "OOM006", "detach-retained-graph"),
    ("validation_loss", 400, "OOM006", "detach-retained-graph"),
    ("metric_list", 40_000, "OOM014", "offload-outputs"),
    ("evaluation_cat", 40_000, "OOM014", "offload-outputs"),
    ("evaluation_with_graph", 40_000, "OOM011", "no-grad-evaluation"),
    ("ema_copies", 40_000, "OOM023", "copy-to-host"),
    ("cast_under_no_grad", 90, "OOM010", "cast-model"),
    ("long_sample", 800, "OOM021", "bucket-by-length"),
    ("one_huge_tensor", 2000, "OOM012", "smaller-batch"),
    ("carved_segment", 1600, "OOM005", "allocator-settings"),
    ("data_on_gpu", 40_000, "OOM016", "stream-batches"),
    ("hidden_state", 40_000, "OOM006", "detach-retained-graph"),
]


@pytest.mark.parametrize(("name", "capacity_mib", "code", "remedy"), CASES)
def test_the_first_finding_is_what_the_case_says(name: str, capacity_mib: int, code: str, remedy: str) -> None:
    findings = diagnosis(name, capacity_mib).findings
    assert findings, "nothing was found"
    assert findings[0].code == code, told(findings)
    assert findings[0].remedies[0] == remedy
    if "# here" in (JOBS / f"{name}.py").read_text():
        lines = [(Path(location.file).name, location.line) for location in findings[0].locations]
        assert (f"{name}.py", line_here(name)) in lines, lines


def test_a_forward_that_failed_half_way_is_no_evaluation() -> None:
    """The script's own error came before any backward could: of one forward, nothing follows."""
    snapshot = record("evaluation_with_graph", 40_000)
    recording = snapshot.recording
    assert recording is not None
    device = recording.devices[0]
    first = next(mark for mark in device.marks if mark.phase == "forward")
    marked = replace(device, marks=tuple(mark for mark in device.marks if mark.event <= first.event))
    recording = replace(recording, devices={0: marked})
    cut = replace(snapshot, recording=replace(recording, facts={**recording.facts, "ended": "ValueError"}))
    assert "OOM011" not in {finding.code for finding in diagnose(build([cut])).findings}
    whole = replace(snapshot, recording=recording)
    assert "OOM011" in {finding.code for finding in diagnose(build([whole])).findings}


HEALTHY = sorted(path.stem for path in JOBS.glob("healthy_*.py"))


@pytest.mark.parametrize("name", ["training_loss", "metric_reset", "evaluation", *HEALTHY])
def test_a_healthy_run_gets_no_warning(name: str) -> None:
    findings = diagnosis(name, 40_000).findings
    assert [f for f in findings if f.severity is not Severity.NOTE] == []


# what a bare recording cannot tell: one tensor copied by a builtin (no Python frame), gradients in no `.grad`, inputs
# and outputs that a list or a graph keeps
NOT_TOLD = {
    "data_on_gpu",
    "stashed_gradients",
    "metric_list",
    "validation_loss",
    "hidden_state",
    "one_huge_tensor",
    "carved_segment",
}


@pytest.mark.parametrize("name", sorted({case[0] for case in CASES} - NOT_TOLD) + HEALTHY)
def test_categories_inferred_without_the_recording_agree(name: str) -> None:
    """The same run judged with and without its "oomdoc" key: at least 97 % of the bytes at the peak."""
    snapshot = record(name, 40_000)
    exact = build([snapshot]).devices[0]
    bare = build([replace(snapshot, recording=None)]).devices[0]
    category = {(block.address, block.birth): block.category for block in bare.live}
    assert exact.peak.event == bare.peak.event
    known = [block for block in exact.live if block.category is not Category.UNKNOWN]
    agreed = sum(b.requested_bytes for b in known if b.category is category[b.address, b.birth])
    assert agreed >= 0.97 * sum(b.requested_bytes for b in known)
