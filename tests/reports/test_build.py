"""From a diagnosis to the record: the verdict's sentence, the worst device, the lines shown."""

from dataclasses import replace
from pathlib import Path

import pytest
from oomdoc.diagnosers.interface import DeviceProfile, Diagnosis, Location, MemoryProfile, StepBytes
from oomdoc.reports.build import build, excerpts, verdict_of
from oomdoc.reports.figures import PeakRange, assumed, left_open, parts, peak_range
from oomdoc.reports.model import Report
from oomdoc.reports.text import percent, size


def test_a_failure_is_told_with_its_numbers(report: Report) -> None:
    """What was asked for, what was free, what was held, and by what."""
    assert report.verdict.summary == (
        "Out of memory in step 1, forward: 3.00 GiB was asked for with 512.0 MiB free on the device; 37.00 GiB of "
        "40.00 GiB was allocated and 2.00 GiB cached. The largest part is activations: 24.00 GiB (67 %)."
    )
    assert (report.verdict.out_of_memory, report.verdict.rank, report.verdict.device) == (True, 0, 0)


def test_a_run_that_fits_is_told_with_what_is_left(report: Report) -> None:
    """Cache and context count: they are on the card too."""
    device = replace(report.diagnosis.profile.devices[0], oom=None)
    verdict = verdict_of(Diagnosis(profile=MemoryProfile(devices=(device,)), findings=()))
    assert verdict.summary == (
        "It fits: the peak is 36.00 GiB of tensors in step 1, forward; with cache and context 38.50 GiB of 40.00 GiB "
        "(96 %), and 39.50 GiB at the highest of the whole run. The largest part is activations: 24.00 GiB (67 %)."
    )


def test_the_sentence_and_the_table_tell_of_one_moment(report: Report) -> None:
    """What the one calls used and the other free is the card, block rounding included."""
    whole = report.diagnosis.profile.devices[0]
    padded = tuple(replace(block, block_bytes=block.block_bytes + 2**28) for block in whole.live)
    device = replace(whole, oom=None, live=padded)
    summary = verdict_of(Diagnosis(profile=MemoryProfile(devices=(device,)), findings=())).summary
    [free] = [part.bytes for part in parts(device) if part.key == "free"]
    assert f"with cache and context {size(40 * 2**30 - free)} of 40.00 GiB" in summary
    assert free == (40 - 36 - 2) * 2**30 - 2**29 - 3 * 2**28  # tensors, cache; outside; rounding


def test_more_than_the_card_holds_never_fits(report: Report) -> None:
    """A recording judged against a smaller card."""
    device = replace(report.diagnosis.profile.devices[0], oom=None, capacity_bytes=20 * 2**30)
    summary = verdict_of(Diagnosis(profile=MemoryProfile(devices=(device,)), findings=())).summary
    assert summary.startswith("It does not fit on this card as it ran: the peak is 36.00 GiB of tensors")


def test_a_script_that_failed_early_has_not_been_seen_to_fit(report: Report) -> None:
    """The peak of its later steps is not known."""
    device = replace(report.diagnosis.profile.devices[0], oom=None)
    assert device.snapshot.recording is not None
    recording = replace(device.snapshot.recording, facts={"ended": "ValueError", "exit_status": 1})
    snapshot = replace(device.snapshot, recording=recording)
    verdict = verdict_of(Diagnosis(profile=MemoryProfile(devices=(replace(device, snapshot=snapshot),)), findings=()))
    assert (verdict.out_of_memory, verdict.ended) == (False, "ValueError, status 1")
    assert verdict.summary.startswith(
        "The script ended early (ValueError, status 1); until then it fits: the peak is 36.00 GiB"
    )


def test_the_device_that_failed_is_the_verdict(report: Report) -> None:
    """Even where another one holds more."""
    failed = report.diagnosis.profile.devices[0]
    fuller = replace(failed, device=1, oom=None, peak=replace(failed.peak, reserved_bytes=2**40))
    profile = MemoryProfile(devices=(fuller, failed))
    assert verdict_of(Diagnosis(profile=profile, findings=())).device == 0


def test_without_a_failure_the_fullest_device_is_the_verdict(report: Report) -> None:
    """Devices are compared by what counts against the card."""
    quiet = replace(report.diagnosis.profile.devices[0], oom=None)
    fuller = replace(quiet, device=1, peak=replace(quiet.peak, reserved_bytes=2**40))
    assert verdict_of(Diagnosis(profile=MemoryProfile(devices=(quiet, fuller)), findings=())).device == 1


def test_a_snapshot_without_devices_says_so() -> None:
    """No made-up device 0."""
    report = build(Diagnosis(profile=MemoryProfile(devices=()), findings=()), path="empty.pickle")
    assert report.verdict.device is None
    assert report.verdict.summary == "The snapshot holds no device."


def test_excerpts_are_the_lines_around(script: Path) -> None:
    """One line before and after, cut at the ends of the file."""
    middle, last = Location(str(script), 6, "forward"), Location(str(script), 7, "forward")
    found = excerpts([middle, last])
    assert found[middle].first_line == 5
    assert found[middle].lines == ("    h = self.ln(x)", "    h = self.mlp(h)", "    return x + h")
    assert len(found[last].lines) == 2


def test_what_was_assumed_is_told_with_how_often(report: Report) -> None:
    """In the words of the recorder, with the user's file as everywhere else."""
    assert assumed(report.diagnosis.profile) == (
        "a float value was read from the GPU at train.py:9: answered 1.0 (4 times)",
        "estimated: cuDNN workspace (2 times), at most 3.0 MiB each",
    )


def with_range(device: DeviceProfile, said: object) -> DeviceProfile:
    recording = device.snapshot.recording
    assert recording is not None
    told = replace(recording, fidelity={**recording.fidelity, "peak_range": said})
    return replace(device, snapshot=replace(device.snapshot, recording=told))


def test_estimates_widen_the_peak(report: Report) -> None:
    """39 GiB are reserved at the highest; a trial's moment is no part of the range, but of what to leave."""
    gib = 2**30
    (device,) = report.diagnosis.profile.devices
    assert left_open(device) == ["11 % of this (4.00 GiB) rests on estimates."]
    known = with_range(device, {"0": {"less_bytes": gib, "more_bytes": gib // 2, "brief_bytes": 45 * gib}})
    assert peak_range(known) == PeakRange(low=38 * gib, high=39 * gib + gib // 2, brief=45 * gib)
    assert device.outside_bytes == gib // 2  # 45 - 39, and 5 % of 39.5: 7.975
    assert left_open(known)[1:] == [
        "With the estimates at their least and their most, the peak is between 38.00 GiB and 39.50 GiB.",
        "Trials of cudnn.benchmark may take 45.00 GiB for a moment; they make do with what is free, and may choose "
        "what is slower.",
        "Leave 7.97 GiB beside it: for that, and 5% for what CUDA loads as a job goes on.",
    ]


@pytest.mark.parametrize("said", [None, [], {}, {"0": None}, {"0": {"less_bytes": "1"}}, {"1": {}}])
def test_a_range_that_is_not_one_is_left_out(report: Report, said: object) -> None:
    (device,) = report.diagnosis.profile.devices
    assert peak_range(with_range(device, said)) is None


def test_a_run_is_known_for_the_steps_recorded(report: Report) -> None:
    """A job that leaks fits for a while."""
    device = replace(report.diagnosis.profile.devices[0], oom=None)
    steps = tuple(StepBytes(step=step, event=0, live_bytes=0, peak_bytes=0) for step in (1, 2, 3))
    profile = MemoryProfile(devices=(replace(device, steps=steps),))
    assert verdict_of(Diagnosis(profile=profile, findings=())).summary.startswith("It fits for the 3 steps recorded: ")


@pytest.mark.parametrize("line", [0, -1, 8, 10**9])
def test_a_line_outside_the_file_has_no_excerpt(script: Path, line: int) -> None:
    """The file may have changed since the recording."""
    assert excerpts([Location(str(script), line, "forward")]) == {}


def test_only_python_files_are_opened(tmp_path: Path) -> None:
    """A snapshot from a stranger must not make the report show /etc/passwd, or a pipe make it hang."""
    secret = tmp_path / "secret.txt"
    secret.write_text("root:x:0:0\n")
    assert excerpts([Location(str(secret), 1, "f"), Location("\0", 1, "f"), Location(str(tmp_path), 1, "f")]) == {}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (3 * 2**29, "1.50 GiB")],
)
def test_sizes_are_read_in_the_unit_that_fits(count: int, text: str) -> None:
    """1024-based, as PyTorch prints them."""
    assert size(count) == text


def test_percent_has_no_whole() -> None:
    """Nothing is said where nothing can be."""
    assert percent(1, None) == ""
    assert percent(1, 0) == ""
    assert percent(1, 3) == "33 %"
    assert percent(1, 300) == "0.3 %"
