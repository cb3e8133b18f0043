"""Known cases of running out of memory, as small scripts on the virtual GPU: first finding, its line, first remedy.

Case numbers (C25) are those of the collection of real reports that the scripts were reduced from.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from oomdoc.diagnosers.diagnose import diagnose  # noqa: E402  (torch may be absent)
from oomdoc.diagnosers.interface import Category, Diagnosis, Finding, Severity  # noqa: E402
from oomdoc.diagnosers.profile import build  # noqa: E402

from .recorded import JOBS, OF_THE_RECORDERS, record  # noqa: E402


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
    ("stashed_gradients", 220, "OOM002", "accumulate-in-place"),
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
    ("idle_model", 40_000, "OOM029", "move-when-used"),
    ("four_copies", 1150, "OOM007", "fused-optimizer"),
    ("four_copies", 900, "OOM003", "cpu-offload"),  # the state itself does not fit
    ("unsharded_gradients", 400, "OOM002", "sync-gradients"),
    ("one_unit", 550, "OOM018", "wrapping-policy"),
    ("token_cap", 3000, "OOM021", "bucket-by-length"),
    ("masked_attention", 900, "OOM009", "flash-attention"),
    ("lora_activations", 1500, "OOM004", "activation-checkpointing"),
    ("varying_shapes", 1700, "OOM005", "allocator-settings"),
    ("load_remainders", 5200, "OOM005", "allocator-settings"),
    ("load_to_card", 480, "OOM027", "map-location"),
    ("full_state", 300, "OOM027", "save-sharded"),
    ("broadcast_load", 700, "OOM027", "map-location"),
    ("step_outputs", 40_000, "OOM014", "offload-outputs"),
    ("hf_evaluate", 40_000, "OOM025", "eval-accumulation"),
    ("persistent_buffer", 40_000, "OOM006", "detach-retained-graph"),
    ("graph_per_shape", 380, "OOM026", "bucket-shapes"),
    ("sampler_copy", 1000, "OOM017", "cache-headroom"),
    ("module_cycle", 300, "OOM030", "break-cycle"),
    # as people write them in forums
    ("running_loss", 1500, "OOM006", "detach-retained-graph"),
    ("lightning_like", 1500, "OOM011", "no-grad-evaluation"),
    ("outputs_for_metrics", 1500, "OOM014", "offload-outputs"),
    ("rnn_state", 3000, "OOM006", "detach-retained-graph"),
    ("empty_cache_loop", 3000, "OOM004", "activation-checkpointing"),
    ("resume_on_gpu", 1500, "OOM027", "map-location"),
    ("ema_teacher", 1300, "OOM011", "no-grad-evaluation"),
    ("gan_both_graphs", 4000, "OOM006", "detach-retained-graph"),
    ("gradient_penalty", 3000, "OOM004", "activation-checkpointing"),
    ("attention_mask", 6000, "OOM009", "flash-attention"),
    ("retry_loop", 4000, "OOM004", "activation-checkpointing"),
    ("feature_hook", 900, "OOM006", "detach-retained-graph"),
    ("cached_masks", 500, "OOM014", "offload-outputs"),
    ("vocab_logits", 6000, "OOM008", "chunked-loss"),
    ("dataset_on_gpu", 1100, "OOM016", "stream-batches"),
    ("input_gradients", 1500, "OOM014", "offload-outputs"),
    ("scaler_fp16", 2500, "OOM007", "fused-optimizer"),
    ("two_models", 900, "OOM023", "copy-to-host"),
    # threads whose cause was settled; the address is in the script
    ("all_pairs", 6000, "OOM024", "compute-in-chunks"),
    ("anchor_boxes", 1600, "OOM021", "compute-in-chunks"),
    ("anchor_boxes", 40_000, "OOM024", "compute-in-chunks"),
    ("chat_turns", 40_000, "OOM017", "release-caches"),
    ("decode_whole", 40_000, "OOM024", "compute-in-chunks"),
    ("dense_embedding", 2100, "OOM003", "sparse-gradients"),
    ("eval_checkpointing", 1500, "OOM004", "activation-checkpointing"),
    ("finished_requests", 200, "OOM017", "release-caches"),
    ("folds", 1000, "OOM023", "release-models"),
    ("log_probabilities", 1500, "OOM008", "chunked-loss"),
    ("losses_of_a_batch", 900, "OOM004", "gradient-accumulation"),
    ("render_all_rays", 40_000, "OOM024", "compute-in-chunks"),
    ("replay_on_gpu", 100, "OOM014", "offload-outputs"),
    ("transducer", 1700, "OOM008", "chunked-loss"),
    ("whole_image", 6000, "OOM024", "compute-in-chunks"),
    ("windows", 40_000, "OOM024", "compute-in-chunks"),
    ("all_cameras", 40_000, "OOM016", "stream-batches"),
    ("batch_all_triplets", 2000, "OOM004", "compute-in-chunks"),
    ("cam_lists", 300, "OOM014", "offload-outputs"),
    ("dpo_pairs", 40_000, "OOM008", "chunked-loss"),
    ("endless_encoder", 200, "OOM011", "no-grad-evaluation"),
    ("hessian_products", 2000, "OOM006", "detach-retained-graph"),
    ("inner_steps", 40_000, "OOM004", "activation-checkpointing"),
    ("listed_then_joined", 500, "OOM014", "offload-outputs"),
    ("metric_states", 1000, "OOM014", "offload-outputs"),
    ("metric_with_graph", 40_000, "OOM006", "detach-retained-graph"),
    ("million_identities", 3000, "OOM024", "tensor-parallel"),
    ("one_hot_target", 1700, "OOM004", "compute-in-chunks"),
    ("perturbed_image", 2000, "OOM006", "detach-retained-graph"),
    ("prompt_logits", 40_000, "OOM008", "needed-logits"),
    ("repeated_distances", 40_000, "OOM024", "compute-in-chunks"),
    ("sample_gradients", 1500, "OOM024", "compute-in-chunks"),
]
# Cases that no script on the virtual GPU shows, and why: what stands for them instead.
NOT_RUN = {
    "C07": "gathers that run ahead need streams that lag behind; its foreach half is foreach_step.py",
    "C23": "a launcher that sets a variable too late: `doctor` and the settings in the snapshot tell it",
    "C26": "host memory of a process: test_oom_messages.py has its message",
    "C34": "contexts of other ranks on one card: outside the allocator, OOM013",
    "C36": "NCCL's own buffers: outside the allocator, OOM013",
    "C37": "another process: its message, OOM013",
    "C49": "a workspace that stays is no finding: every healthy script here has one",
    "C51": "a partitioner of torch 2.6-dev that torch 2.13 no longer has; of today's plans the virtual GPU applies the"
    " rules, and compiles nothing",
    "C58": "torch 1.6 cast a weight anew in each forward under no_grad, torch 2.13 does not: cast_under_no_grad.py has"
    " the copies that remain",
    "C52": "host memory of workers: test_oom_messages.py has its message",
    "C53": "shared memory of workers: test_oom_messages.py has its message",
    "C63": "several pipeline stages: made up, OOM028",
    "C65": "streams that lag behind: the virtual GPU's do not; made up, OOM020",
}


FIRST_OF_ITS_CODE = {case[2]: case for case in reversed(CASES)}


@pytest.mark.parametrize(
    ("name", "capacity_mib", "code", "remedy"),
    [pytest.param(*case, marks=() if FIRST_OF_ITS_CODE[case[2]] == case else pytest.mark.slow) for case in CASES],
)
def test_the_first_finding_is_what_the_case_says(name: str, capacity_mib: int, code: str, remedy: str) -> None:
    findings = diagnosis(name, capacity_mib).findings
    assert findings, "nothing was found"
    assert findings[0].code == code, told(findings)
    assert findings[0].remedies[0] == remedy
    if "# here" in (JOBS / f"{name}.py").read_text():
        lines = [(Path(location.file).name, location.line) for location in findings[0].locations]
        assert (f"{name}.py", line_here(name)) in lines, lines


def test_a_card_that_another_process_fills_is_told_before_what_the_job_holds() -> None:
    """C38: an inference engine took 90 % of a card of 24 GiB before the trainer began."""
    snapshot = record("adam_second_step", 2458, 24576 - 2458)
    findings = diagnose(build([snapshot])).findings
    assert (findings[0].code, findings[0].severity) == ("OOM013", Severity.ERROR), told(findings)
    assert record("adam_second_step", 24576 - 500).devices[0].trace.oom_device_free == {}, "it needs no more than that"


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


def test_every_case_is_run_or_the_reason_is_given(shared: Path) -> None:
    named = {word for path in JOBS.glob("*.py") for word in re.findall(r"\bC\d\d\b", path.read_text())}
    named |= set(re.findall(r'"""(C\d\d)', Path(__file__).read_text()))  # of a test here
    known = set(re.findall(r"^### (C\d\d) ", (shared / "cases" / "oom-cases.md").read_text(), re.M))
    assert known <= named | NOT_RUN.keys(), known - named - NOT_RUN.keys()


@pytest.mark.parametrize(
    ("name", "holder"),
    [
        ("validation_loss", "`total`, global of validation_loss.py"),
        ("hidden_state", "`previous`, attribute of Model"),
        ("metric_list", "list `kept`, global of metric_list.py"),
        ("evaluation_cat", "`every`, global of evaluation_cat.py"),
        ("closure", "list `seen`, closure of watch.<locals>.<lambda>()"),
        ("traceback_kept", "local of step() in traceback_kept.py, which the traceback of an exception keeps"),
    ],
)
def test_who_holds_the_reference_is_named(name: str, holder: str) -> None:
    first = diagnosis(name, 40_000).findings[0]
    assert first.code in {"OOM006", "OOM014", "OOM025"}
    assert any(holder in line for line in first.evidence), first.evidence


def test_the_variable_that_grew_is_named_also_where_its_function_failed() -> None:
    """The frames that ran when memory ran out are no traceback that somebody kept."""
    evidence = diagnosis("running_loss", 1500).findings[0].evidence
    assert any("`total_loss`, local of train() in running_loss.py, with a graph" in line for line in evidence), evidence


HEALTHY = [*sorted(path.stem for path in JOBS.glob("healthy_*.py")), *OF_THE_RECORDERS]
# one of each kind runs with every change, all of them with `make test-slow`
QUICK = ["accumulation", "amp", "checkpointing", "convnet", "gan", "gpt", "lora", "losses", "rnn", "varying", "vit"]
QUICK += ["fsdp2_blocks", "inference", "resnet", "step_in_backward", "teacher", "wasserstein", "fp32_masters"]


@pytest.mark.parametrize(
    "name",
    [
        "training_loss",
        "metric_reset",
        "evaluation",
        *(
            pytest.param(name, marks=() if name.removeprefix("healthy_") in QUICK else pytest.mark.slow)
            for name in HEALTHY
        ),
    ],
)
def test_a_healthy_run_gets_no_warning(name: str) -> None:
    findings = diagnosis(name, 40_000).findings
    assert [f for f in findings if f.severity is not Severity.NOTE] == []


# what a bare recording cannot tell: one tensor copied by a builtin (no Python frame), gradients in no `.grad`, inputs
# and outputs that a list or a graph keeps, what a loss drops before its backward
NOT_TOLD = {
    "data_on_gpu",
    "stashed_gradients",
    "metric_list",
    "validation_loss",
    "hidden_state",
    "one_huge_tensor",
    "carved_segment",
    "varying_shapes",
    "load_remainders",
    "broadcast_load",
    "unsharded_gradients",
    "step_outputs",
    "hf_evaluate",
    "persistent_buffer",
    "graph_per_shape",
    "sampler_copy",
    "load_to_card",
    "full_state",
    "idle_model",
    "running_loss",
    "lightning_like",
    "outputs_for_metrics",
    "gan_both_graphs",
    "dataset_on_gpu",
    "input_gradients",
    "module_cycle",
    "replay_on_gpu",
    "losses_of_a_batch",
    "all_cameras",
    "batch_all_triplets",
    "cam_lists",
    "dpo_pairs",
    "metric_states",
    "metric_with_graph",
    "sample_gradients",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({case[0] for case in CASES} - NOT_TOLD))
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
