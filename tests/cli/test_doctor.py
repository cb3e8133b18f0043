"""`oomdoc doctor` and `oomdoc explain`: what they tell without a GPU and without running anything."""

import subprocess
from collections.abc import Callable

import pytest
from oomdoc.cli import doctor, nvml
from oomdoc.cli.explain import _page, pages
from oomdoc.errors import OomdocError

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


def test_the_doctor_shows_who_holds_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU: its name, what is in use and by which process (NVML is faked here, there is no card)."""
    card = nvml.Card(
        index=0, name="NVIDIA H200", driver="570.1", total_bytes=140 * 2**30, used_bytes=3 * 2**30,
        processes=((4242, 2 * 2**30),),
    )  # fmt: skip
    monkeypatch.setattr(doctor, "cards", lambda: [card])
    (check,) = doctor._gpus()
    assert check.text == "NVIDIA H200: 3.00 GiB of 140.00 GiB in use (process 4242 2.00 GiB), driver 570.1"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_card_is_no_card(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    """CUDA_VISIBLE_DEVICES decides whether a run goes to real cards by itself."""
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
    assert "eight-bit-optimizer" in without
    for name in without:
        with pytest.raises(OomdocError, match=r"oomdoc explain OOM\d+$") as error:
            _page(name)
        cause = known[str(error.value).rsplit(" ", 1)[1]]
        assert f"    {name}: " in cause.__doc__, name
