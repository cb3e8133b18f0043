"""`oomdoc doctor` and `oomdoc explain`: what they tell without a GPU and without running anything."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oomdoc.cli import health
from oomdoc.cli.explain import _page, pages
from oomdoc.cli.health import all_checks
from oomdoc.errors import OomdocError
from oomdoc.recorders import host_memory, nvml

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_doctor_names_what_is_here(oomdoc: Run) -> None:
    """Versions, and that a virtual GPU is at hand."""
    done = oomdoc("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("Python", "torch", "virtual GPU"):
        assert word in done.stdout


def test_the_doctor_reads_allocator_settings_as_pytorch_does(oomdoc: Run) -> None:
    """A key that PyTorch would refuse is named before a job starts with it."""
    good = oomdoc("doctor", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert "PYTORCH_CUDA_ALLOC_CONF  expandable_segments:True" in good.stdout
    bad = oomdoc("doctor", PYTORCH_CUDA_ALLOC_CONF="expandable_segment:True")
    assert bad.returncode == 1
    assert "BAD PYTORCH_CUDA_ALLOC_CONF" in bad.stdout


GIB = 2**30


def machine(monkeypatch: pytest.MonkeyPatch, *cards: dict[str, Any], **options: Any) -> Any:
    """NVML of a machine with these cards; there is none here."""
    spec = importlib.util.spec_from_file_location("fake_pynvml", Path(__file__).parent / "fake_pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Machine(
        [{"name": "NVIDIA H200", "uuid": "GPU-1", "total": 140 * GIB, **each} for each in cards], **options
    )
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def lines(name: str, **environment: str) -> list[tuple[bool | None, str]]:
    return [(each.good, each.text) for each in all_checks(environment) if each.name == name]


def test_the_doctor_shows_who_holds_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, what is in use and by which process; and NVML is shut down again."""
    mine = os.getpid()
    made = machine(monkeypatch, {"used": 3 * GIB, "processes": [(mine, 5 * GIB // 2)]})
    [(good, text)] = lines("GPU 0")
    assert good is None
    assert text.startswith("NVIDIA H200: 3.00 GiB of 140.00 GiB in use (")
    assert text.endswith(f" {mine} 2.50 GiB)")
    assert made.depth == 0


def test_memory_that_nobody_alive_holds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zombie, what a killed process left, and a driver that tells nothing."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not waited for: a zombie
    machine(monkeypatch, {"used": 9 * GIB, "processes": [(child.pid, 9 * GIB)]})
    assert [good for good, _ in lines("GPU 0")] == [None, False]
    assert f"9.00 GiB held by {child.pid}, no live process here: a zombie" in lines("GPU 0")[1][1]
    child.wait()
    machine(monkeypatch, {"used": 9 * GIB, "processes": [(os.getpid(), 2 * GIB)]})
    assert "7.00 GiB in use by no process that NVML names" in lines("GPU 0")[1][1]
    machine(monkeypatch, {"used": 9 * GIB, "processes": [(os.getpid(), None)]})
    [(_, text)] = lines("GPU 0")
    assert "the driver does not tell by whom" in text


def test_the_drivers_own_share_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second version of NVML's record tells it apart; an old driver has the first alone."""
    machine(monkeypatch, {"used": GIB, "reserved": GIB // 2})
    [card] = nvml.cards()
    assert (card.used_bytes, card.reserved_bytes) == (GIB, GIB // 2)
    machine(monkeypatch, {"used": GIB, "reserved": GIB // 2, "old": True})
    [card] = nvml.cards()
    assert (card.used_bytes, card.reserved_bytes) == (3 * GIB // 2, 0)


def test_a_mig_slice_is_what_a_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"uuid": "MIG-1", "total": 20 * GIB, "used": GIB}
    machine(monkeypatch, {"used": GIB, "mig": [part]})
    assert "whose memory is its capacity (0: 1.00 GiB of 20.00 GiB)" in lines("GPU 0")[1][1]
    machine(monkeypatch, {"used": 0, "mig": []})
    assert "no instance is made" in lines("GPU 0")[1][1]


def test_torch_against_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU build beside a GPU, and a driver that is too old for the build's CUDA."""
    assert health._with_driver("2.13.0+cpu", "570.1").good is False
    assert "needs driver 580 or newer" in health._with_driver("2.14.0+cu130", "570.1").text
    assert health._with_driver("2.13.0+cu126", "570.1").good is True


def test_host_memory_is_bounded_by_the_cgroup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Version 2 of cgroups; the tightest limit on the way up counts, and the kernel's kills are its own."""
    job = tmp_path / "cgroup" / "job" / "step"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text(f"{4 * GIB}\n")
    (job.parent / "memory.current").write_text(f"{4 * GIB - 5}\n")
    (job.parent / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    (proc / "meminfo").write_text("MemTotal: 67108864 kB\n")
    monkeypatch.setattr(host_memory, "PROC", proc)
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path / "cgroup")
    [(good, text)] = lines("host memory")
    assert good is False
    assert "64.00 GiB on this machine, of which this container or job may use 4.00 GiB" in text
    assert host_memory.kernel_kills() == 3
    monkeypatch.setattr(host_memory, "shm", lambda: (64 << 20, 1 << 20))
    assert "--shm-size" in lines("/dev/shm")[0][1]


def test_nvml_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, loaded=False)
    assert "none seen (NVML: Driver Not Loaded)" in lines("GPUs")[0][1]
    machine(monkeypatch)
    assert "none seen (NVML sees no device)" in lines("GPUs")[0][1]


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_card_is_no_card(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    """CUDA_VISIBLE_DEVICES decides whether a run goes to real cards by itself."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "cards", lambda: [object()])
    assert nvml.has_cuda()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not nvml.has_cuda()


def test_every_cause_and_remedy_has_a_page(oomdoc: Run) -> None:
    """The index lists them all, and a page says what its docstring says."""
    index = oomdoc("explain").stdout
    for name, module in pages().items():
        assert name in index
        assert module.__doc__
    page = oomdoc("explain", "activations-dominate").stdout
    assert page.startswith("# OOM004 activations-dominate\n\n")
    assert "Known limits" in page
    assert page == oomdoc("explain", "oom004").stdout


def test_a_remedy_without_a_page_leads_to_its_cause(oomdoc: Run) -> None:
    """Causes name changes that oomdoc cannot compute yet; the page of the cause says what they do."""
    known = pages()
    names = {name for each in known.values() for name in getattr(each, "REMEDIES", ()) if name not in known}
    for name in sorted(names)[:2]:
        done = oomdoc("explain", name)
        assert done.returncode == 2
        code = done.stderr.split()[-1]
        assert done.stderr.endswith(f"names it: oomdoc explain {code}\n")
        assert name in known[code].REMEDIES


def test_every_remedy_that_a_cause_names_leads_to_a_page_that_speaks_of_it() -> None:
    """One without a page of its own: to the cause whose page has an entry for it."""
    known = pages()
    named = {name for module in known.values() for name in getattr(module, "REMEDIES", ())}
    without = sorted(named - set(known))
    assert "eval-accumulation" in without
    for name in without:
        with pytest.raises(OomdocError, match=r"oomdoc explain OOM\d+$") as error:
            _page(name)
        cause = known[str(error.value).rsplit(" ", 1)[1]]
        assert f"    {name}: " in cause.__doc__, name
