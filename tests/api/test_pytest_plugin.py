"""The pytest plugin in a project that uses it, and in one that does not."""

import time
from collections.abc import Callable, Sequence

import pytest

Suite = Callable[..., pytest.RunResult]

USING = """\
import pytest
import torch

kept = []


@pytest.fixture
def weights():
    return torch.ones(1 << 20, device="cuda")  # 4 MiB, made by a fixture


@pytest.mark.gpu_memory_limit("16 MiB", gpu="t4")
def test_within(weights, capsys):
    print("seen", weights.device)
    assert torch.cuda.get_device_properties(0).total_memory < 16 << 30
    assert capsys.readouterr().out == "seen cuda:0\\n"


@pytest.mark.gpu_memory_limit("16 MiB")
def test_above(weights):
    print("captured words")
    grown = torch.ones(1 << 22, device="cuda")
    assert grown.shape == (1 << 22,)


@pytest.mark.gpu_memory_limit("1 TiB", gpu="t4")
def test_out_of_memory():
    torch.ones(1 << 30, device="cuda")
    torch.ones(1 << 33, device="cuda")


@pytest.mark.gpu_memory_leak(repetitions=2)
def test_leak():
    kept.append(torch.ones(1 << 20, device="cuda"))


@pytest.mark.gpu_memory_leak(repetitions=2)
def test_no_leak():
    torch.ones(1 << 20, device="cuda")
    if not kept:
        kept.append(torch.ones(1 << 20, device="cuda"))  # once is no leak


def test_numbers(virtual_gpu):
    held = torch.ones(1 << 20, device=virtual_gpu.device)
    del held
    assert (virtual_gpu.allocated_bytes, virtual_gpu.peak_bytes) == (0, 4 << 20)


@pytest.mark.gpu_memory_limit("8 MiB", gpus="t4")
def test_misspelt():
    raise AssertionError("a test with a marker that cannot be meant does not run")


def test_of_the_cpu():
    assert not torch.cuda.is_available()
    assert torch.ones(2).sum() == 2
"""
OUTCOMES = {
    "test_within": "PASSED",
    "test_above": "FAILED",
    "test_out_of_memory": "FAILED",
    "test_leak": "FAILED",
    "test_no_leak": "PASSED",
    "test_numbers": "PASSED",
    "test_misspelt": "ERROR",
    "test_of_the_cpu": "PASSED",
}


def outcomes(lines: Sequence[str]) -> dict[str, str]:
    """Of the short summary that -rA prints."""
    summary = "\n".join(lines).partition("short test summary info")[2]
    words = [line.split() for line in summary.splitlines() if "test_it.py::" in line]
    return {each[1].partition("::")[2]: each[0] for each in words}


@pytest.mark.slow
def test_pass_fail_and_leak(suite: Suite) -> None:
    """What fails names the lines that hold the memory; output is captured as ever."""
    done = suite(USING)
    done.assert_outcomes(passed=4, failed=3, errors=1)
    assert outcomes(done.outlines) == OUTCOMES
    told = [line.strip() for line in done.outlines]
    line = USING.splitlines().index('    grown = torch.ones(1 << 22, device="cuda")') + 1
    head = "the test needs 20.0 MiB allocated on a100-80gb; its limit is 16.0 MiB, 4.0 MiB too much"
    assert head in told
    rows = told[told.index(head) + 1 :][:2]
    assert rows[0].startswith("16.0 MiB")
    assert f"test_it.py:{line} in test_above" in rows[0]
    assert "in weights" in rows[1]
    assert "captured words" in told
    done.stdout.fnmatch_lines("*OOM012 request-exceeds-card*")  # the cause, beside torch's own message
    assert "each of 2 repetitions leaves memory on the GPU: 4.0 MiB, 4.0 MiB" in told
    done.stdout.fnmatch_lines("*8.0 MiB  2 blocks  test_it.py:*")
    done.stdout.fnmatch_lines("*gpu_memory_limit has no argument 'gpus': gpu, metric*")


@pytest.mark.slow
def test_xdist_and_strict_markers(suite: Suite) -> None:
    """Every worker has its own virtual GPU; the markers are known."""
    done = suite(USING, "-n", "2", "--strict-markers", "-k", "within or above or leak")
    chosen = ("test_within", "test_above", "test_leak", "test_no_leak")
    done.assert_outcomes(passed=2, failed=2)
    assert outcomes(done.outlines) == {name: OUTCOMES[name] for name in chosen}


NOT_USING = """\
import sys


def test_nothing_is_imported():
    assert not {"torch", "numpy", "rich", "typer", "yaml"} & set(sys.modules)
"""


def test_a_project_that_does_not_use_it_pays_nothing(suite: Suite) -> None:
    """Nothing heavy is imported; the plugin is there all the same."""
    began = time.monotonic()
    done = suite(NOT_USING)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines("plugins: *oomdoc-*")
    assert time.monotonic() - began < 60
    suite(NOT_USING, "--markers").stdout.fnmatch_lines("*gpu_memory_limit(size*")
