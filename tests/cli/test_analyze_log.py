"""`oomdoc analyze train.log`: what is a log, the report in the contract, the exit status."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "report.schema.json").read_text(encoding="utf-8"))

OTHERS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 23.65 GiB "
    "of which 128.00 MiB is free. Including non-PyTorch memory, this process has 11.00 GiB memory in use. Of the "
    "allocated memory 9.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


def analyzed(oomdoc: Run, text: str, tmp_path: Path) -> dict[str, Any]:
    """The JSON report, checked against the schema, and its exit status under `rc`."""
    (tmp_path / "train.log").write_text(text, encoding="utf-8")
    done = oomdoc("analyze", "train.log", "--format", "json")
    report: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA)
    assert report["source"]["kind"] == "log"
    return {**report, "rc": done.returncode}


def test_memory_of_others_is_found_and_fragmentation_left_open(oomdoc: Run, tmp_path: Path) -> None:
    """23.65 - 0.125 - 10.00 = 13.525 GiB are not this allocator's; 1.00 GiB cached for a request of 0.50 GiB."""
    report = analyzed(oomdoc, f"step 1\n[rank5]: {OTHERS}\n", tmp_path)
    assert report["rc"] == 1
    verdict = report["verdict"]
    assert (verdict["out_of_memory"], verdict["rank"], verdict["device"]) == (True, 5, 1)
    (device,) = report["devices"]
    assert (device["rank"], device["device"]) == (5, 1)
    assert device["outside_bytes"] == pytest.approx(13.525 * 2**30, rel=1e-9)
    assert device["oom"]["requested_bytes"] == 512 << 20
    assert device["oom"]["device_free_bytes"] == 128 << 20
    assert device["peak"]["requested_bytes"] is None
    assert [finding["code"] for finding in report["findings"]] == ["OOM013"]
    assert {"OOM005", "log"} <= {each["code"] for each in report["inconclusive"]}
    (message,) = report["log"]["messages"]
    assert message["line"] == 2
    assert message["own_outside_bytes"] == 1 << 30
    assert message["others_bytes"] == pytest.approx(12.525 * 2**30, rel=1e-9)
    assert message["fragmentation_possible"] is True


def test_no_finding_where_the_process_filled_the_card_itself(oomdoc: Run, tmp_path: Path) -> None:
    text = OTHERS.replace("9.00 GiB", "22.00 GiB").replace("this process has 11.00", "this process has 23.50")
    report = analyzed(oomdoc, text, tmp_path)
    assert report["rc"] == 1
    assert report["findings"] == []
    assert report["verdict"]["rank"] is None


def test_a_request_that_nothing_could_serve(oomdoc: Run, tmp_path: Path) -> None:
    report = analyzed(oomdoc, OTHERS.replace("512.00 MiB", "64.00 GiB"), tmp_path)
    assert report["findings"][0]["code"] == "OOM012"
    assert report["log"]["messages"][0]["setting_can_help"] is False


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("step 1 loss 0.5\nall done\n", 0, "No line of 2 speaks of memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.batch cgroup.\n", 1, "not of the GPU"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n", 1, "a library"),
        ("h:1:2 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n", 1, "a library"),
        ("RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error.\n", 0, "/dev/shm"),
        ("RuntimeError: DataLoader worker (pid(s) 3216) exited unexpectedly\n", 0, "DataLoader worker died"),
        ("Killed\n", 0, "killed from outside"),
    ],
)
def test_what_is_no_device_oom_is_told_apart(oomdoc: Run, tmp_path: Path, text: str, status: int, words: str) -> None:
    report = analyzed(oomdoc, text, tmp_path)
    assert report["rc"] == status
    assert report["verdict"]["out_of_memory"] is (status == 1)
    assert words in report["verdict"]["summary"]
    assert report["devices"] == []


def test_stdin(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oomdoc", "analyze", "-", "--format", "json"]
    done = subprocess.run(command, input=OTHERS.encode(), capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["devices"][0]["device"] == 1
    for unreadable in (b"", b"\x80\x04}q\x00.\0\0\0"):
        done = subprocess.run(command, input=unreadable, capture_output=True, cwd=tmp_path, check=False)
        assert done.returncode == 3
        assert done.stderr.startswith(b"oomdoc: standard input is")


@pytest.mark.parametrize("form", ["terminal", "markdown", "svg"])
def test_every_format_draws_it(oomdoc: Run, tmp_path: Path, form: str) -> None:
    (tmp_path / "train.log").write_text(OTHERS)
    done = oomdoc("analyze", "train.log", "--format", form)
    assert done.returncode == 1, done.stderr
    assert "OOM013" in done.stdout
    assert "12.5" in done.stdout.replace("&#160;", " ")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.log", b""),
        ("b.log", bytes(range(256)) * 16),
        ("c.json", b'{"not": "a snapshot"}'),
        ("d", b'{"cut": [1, 2'),
        ("e.txt", b"[1, 2, 3]\n"),
        ("f.pickle", b"RuntimeError: CUDA error: out of memory\n"),
    ],
)
def test_what_is_no_log(oomdoc: Run, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    done = oomdoc("analyze", name)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_one_json_object_per_line_is_a_log(oomdoc: Run, tmp_path: Path) -> None:
    lines = [json.dumps({"level": "info", "message": text}) for text in ("step 1", OTHERS)]
    assert analyzed(oomdoc, "\n".join(lines) + "\n", tmp_path)["rc"] == 1


def test_logs_and_snapshots_are_not_mixed(oomdoc: Run, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(OTHERS)
    (tmp_path / "rank0.pickle").write_bytes(b"")
    done = oomdoc("analyze", "train.log", "rank0.pickle")
    assert done.returncode == 2
    assert "analyzed apart" in done.stderr


def test_a_card_cannot_be_named_for_a_log(oomdoc: Run, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(OTHERS)
    done = oomdoc("analyze", "train.log", "--gpu", "h100-80gb")
    assert done.returncode == 2
    assert "judge recordings" in done.stderr


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_packed_log_is_read_and_a_cut_one_refused(oomdoc: Run, tmp_path: Path, kind: str) -> None:
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind]
    packed = pack("".join(f"step {n} loss {n * 7919 % 1009}\n" for n in range(20_000)).encode() + OTHERS.encode())
    (tmp_path / f"train.log.{kind}").write_bytes(packed)
    done = oomdoc("analyze", f"train.log.{kind}")
    assert done.returncode == 1
    assert "512.0 MiB" in done.stdout
    (tmp_path / f"train.log.{kind}").write_bytes(packed[:-20])
    done = oomdoc("analyze", f"train.log.{kind}")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
