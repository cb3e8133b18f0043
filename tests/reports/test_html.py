"""The page, made by the real command and opened in a real browser."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oomdoc.diagnosers import profile
from oomdoc.diagnosers.interface import Diagnosis
from oomdoc.diagnosers.ranks import RankSummary
from oomdoc.recorders import summary
from oomdoc.reports.build import build as build_report
from oomdoc.reports.html import page as html
from oomdoc.reports.model import Report
from oomdoc.reports.sampling import moments, stacked
from oomdoc.snapshots import writer
from oomdoc.snapshots.columns import empty_trace
from oomdoc.snapshots.model import Blocks, BlockState, DeviceSnapshot, Frame, Segments, Snapshot, Stacks

from .recordings import MIB, hostile_stacks, ordinary_stacks, snapshot, training

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 6 << 20
FIRST_PAINT_MS = 3000
SIZES = ((1280, "light"), (1280, "dark"), (400, "light"))


@dataclass
class Opened:
    """What a browser said of a page."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def opened(chromium: Any) -> Iterator[Any]:
    contexts = []

    def show(path: Path, width: int = 1280, scheme: str = "light", **options: Any) -> Opened:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        seen = Opened(context.new_page())
        seen.page.on("console", lambda message: seen.messages.append(message.text))
        seen.page.on("pageerror", lambda error: seen.messages.append(str(error)))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.goto(path.resolve().as_uri())
        return seen

    yield show
    for context in contexts:
        context.close()


def made(tmp_path: Path, *targets: Path) -> Path:
    """The page of files or folders in `tmp_path`."""
    page = tmp_path / "report.html"
    run = subprocess.run(
        [sys.executable, "-m", "oomdoc", "analyze", "--output", page.name, *(each.name for each in targets)],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stderr
    assert page.stat().st_size <= MOST_BYTES
    return page


def is_clean(seen: Opened, path: Path) -> None:
    """Charts drawn, in time; nothing said on the console, nothing asked of anywhere."""
    seen.page.wait_for_selector("html[data-ready=yes]", timeout=20_000)
    paint = seen.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint <= FIRST_PAINT_MS
    assert seen.messages == []
    assert [url for url in seen.requests if url != path.resolve().as_uri() and not url.startswith("data:")] == []
    overflow = seen.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, "the page is wider than the window"


def picture(page: Any, name: str, *selectors: str) -> None:
    """For the documentation (`make screenshots`): the first of the elements down to the last one."""
    folder = os.environ.get("OOMDOC_SCREENSHOTS")
    if folder is None:
        return
    page.evaluate(
        "document.activeElement.blur(); scrollTo(0, 0); document.querySelector('header').style.position = 'static'"
    )
    boxes = [page.locator(each).bounding_box() for each in selectors]
    left, top = min(box["x"] for box in boxes), min(box["y"] for box in boxes)
    right = max(box["x"] + box["width"] for box in boxes)
    bottom = max(box["y"] + box["height"] for box in boxes)
    clip = {"x": left - 12, "y": top - 8, "width": right - left + 24, "height": min(bottom - top + 16, 900)}
    page.screenshot(path=Path(folder) / f"{name}.png", clip=clip, full_page=True)


@pytest.mark.slow
def test_the_example_that_does_not_fit_with_its_plan(tmp_path: Path, opened: Any) -> None:
    """A recorded run, its modules and a plan that was verified."""
    shutil.copy(ROOT / "examples" / "train_gpt.py", tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "oomdoc", "plan", "--gpu", "a100-40gb", "--output", "gpt.html", "train_gpt.py"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    page = tmp_path / "gpt.html"
    seen = opened(page)
    is_clean(seen, page)
    assert "fits" in seen.page.inner_text("#plan .verified >> nth=1")
    assert seen.page.get_attribute("#tab-modules", "aria-selected") == "true"
    assert "blocks" in seen.page.inner_text("#tiles")
    picture(seen.page, "gpt-verdict", "#verdict", "#memory")
    picture(seen.page, "gpt-plan", "#plan")
    picture(seen.page, "gpt-alive", "#alive")
    assert seen.messages == []


@pytest.mark.slow
def test_a_run_of_200_000_events(tmp_path: Path, opened: Any) -> None:
    """Opens at three widths and in both themes; every control answers."""
    path = tmp_path / "long.pickle"
    writer.dump(snapshot([training(200_000, ordinary_stacks())]), path)
    page = made(tmp_path, path)
    for width, scheme in SIZES:
        seen = opened(page, width, scheme)
        is_clean(seen, page)
    seen = opened(page)
    is_clean(seen, page)
    picture(seen.page, "long-time", "#time")
    _every_control(seen.page)
    assert seen.messages == []


def _every_control(page: Any) -> None:
    peak = page.inner_text("#readout")
    page.focus("#moment")
    page.keyboard.press("Home")
    assert page.inner_text("#readout").startswith("before the first event: 0 bytes")
    page.click("#to-moment")
    assert page.inner_text("#readout") == peak
    for tab in ("stacks", "lines", "blocks", "modules"):
        page.click(f"#tab-{tab}")
        assert page.inner_text("#tiles").strip()
    page.focus("#tab-modules")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.get_attribute("#tab-stacks", "aria-selected") == "true"
    page.locator("#tiles .tile").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#crumbs button").count() > 1
    page.focus("#map")
    page.keyboard.press("End")
    assert re.match(r"segment (\d+) of \1 at 0x", page.inner_text("#map-readout"))
    page.locator("#chart").scroll_into_view_if_needed()
    box = page.locator("#chart .u-over").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 80, steps=4)
    page.mouse.up()
    assert page.inner_text("#readout") == peak  # a drag zooms and chooses nothing
    page.mouse.click(box["x"] + 500, box["y"] + 80)
    assert page.inner_text("#readout") != peak
    page.click("#theme")


def test_an_out_of_memory_with_three_devices(tmp_path: Path, opened: Any) -> None:
    """The device that failed comes first, each of the others can be chosen."""
    stacks, path = ordinary_stacks(), tmp_path / "three.pickle"
    writer.dump(snapshot([training(2000, stacks), training(2000, stacks, 300 * MIB), training(2000, stacks)]), path)
    page = made(tmp_path, path)
    seen = opened(page)
    is_clean(seen, page)
    assert seen.page.inner_text("h1").endswith("Out of memory")
    assert seen.page.locator("#device option").all_inner_texts() == ["device 1", "device 0", "device 2"]
    assert "more were asked for" in seen.page.inner_text("#readout")
    picture(seen.page, "three-verdict", "#verdict", "#ranks")
    picture(seen.page, "three-allocator", "#allocator")
    seen.page.select_option("#device", "2")
    assert "more were asked for" not in seen.page.inner_text("#readout")
    assert seen.messages == []


def test_hostile_names_are_inert(tmp_path: Path, opened: Any) -> None:
    """Markup, quotes, template and control characters in frame names: shown as text, never run."""
    path = tmp_path / "bad <b onmouseover=alert(1)>.pickle"
    writer.dump(snapshot([training(1500, hostile_stacks(), 300 * MIB)]), path)
    page = made(tmp_path, path)
    text = page.read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x1b\u202a-\u202e\u2066-\u2069]", text)
    for width, scheme in SIZES[:2]:
        seen = opened(page, width, scheme)
        is_clean(seen, page)
        for tab in ("stacks", "lines", "blocks", "modules"):
            seen.page.click(f"#tab-{tab}")
        seen.page.locator("#tiles .tile").last.hover()
        assert seen.page.evaluate("window.pwned") is None
        assert seen.page.locator("main img, main b, main iframe, main object").count() == 0
        assert seen.messages == []
    seen.page.click("#tab-lines")
    picture(seen.page, "hostile-lines", "#alive")
    assert "<img src=x onerror='window.pwned = 2'>" in seen.page.inner_text("#tiles")


def test_without_a_script_all_of_the_report_is_there(tmp_path: Path, opened: Any) -> None:
    """Under the headings of the Markdown report."""
    path = tmp_path / "one.pickle"
    writer.dump(snapshot([training(900, ordinary_stacks(), 300 * MIB)]), path)
    seen = opened(made(tmp_path, path), java_script_enabled=False)
    text = seen.page.inner_text("main")
    for words in ("Out of memory", "Memory at the failure", "Held by", "Causes", "Next", "The charts need a script"):
        assert words in text
    assert not seen.page.locator("#charts").is_visible()
    run = subprocess.run(
        [sys.executable, "-m", "oomdoc", "analyze", "-f", "markdown", str(path)], capture_output=True, text=True
    )
    headings = re.findall(r"^#+ (.*)$", run.stdout, re.MULTILINE)
    assert len(headings) >= 5
    for heading in headings:
        assert heading.replace("\\", "") in text


def test_it_prints_in_light_with_everything_open(tmp_path: Path, opened: Any) -> None:
    path = tmp_path / "one.pickle"
    writer.dump(snapshot([training(900, ordinary_stacks())]), path)
    seen = opened(made(tmp_path, path), scheme="dark")
    seen.page.wait_for_selector("html[data-ready=yes]")
    assert len(seen.page.pdf()) > 10_000
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert seen.page.evaluate("[...document.querySelectorAll('details')].every(each => each.open)")
    seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert seen.page.evaluate("document.documentElement.dataset.theme ?? 'system'") == "system"
    assert seen.messages == []


@pytest.mark.slow
def test_a_merge_of_1024_ranks(tmp_path: Path, opened: Any) -> None:
    """Every rank is in the table; charts are of those that matter."""
    stacks = ordinary_stacks()
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(1024):
        recorder = training(150, stacks, (120 if rank == 700 else 4000) * MIB, layers=4)
        writer.dump(snapshot([recorder]), folder / f"rank{rank}.pickle")
    page = made(tmp_path, folder)
    seen = opened(page)
    is_clean(seen, page)
    seen.page.evaluate("document.querySelector('#ranks details').open = true")
    assert seen.page.locator("#ranks tbody tr").count() == 1024
    assert seen.page.inner_text("#ranks tbody tr >> nth=0").startswith("rank 700, device 0\tout of memory")
    assert seen.page.inner_text("#memory-1").startswith("Memory at the failure (rank 700")
    assert seen.page.locator("#device option").count() == 8


@pytest.mark.slow
def test_a_run_of_1024_ranks_with_their_summaries(tmp_path: Path, opened: Any) -> None:
    """What `oomdoc run` leaves of so many: a summary of each, snapshots of the few that tell most."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(1024):
        failed = rank in (300, 700)
        found = RankSummary(
            rank=rank, world_size=1024, host=f"node{rank // 8:03}", capacity_bytes=80 << 30, requested_bytes=60 << 30,
            reserved_bytes=(79 if failed else 64) << 30, categories={"activation": 40 << 30, "parameter": 20 << 30},
            out_of_memory=failed, oom_time=1.8e9 + rank if failed else None,
            oom_asked_bytes=3 << 30 if failed else None,
            step=2, phase="backward", stage="blocks.0", exit_status=int(failed),
        )  # fmt: skip
        (folder / f"rank{rank}.summary.json").write_text(summary.dumps(found))
    stacks = ordinary_stacks()
    for rank in (0, 300):
        recorder = training(900, stacks, (300 if rank else 4000) * MIB)
        writer.dump(snapshot([recorder]), folder / f"rank{rank}.pickle")
    page = made(tmp_path, folder)
    seen = opened(page)
    is_clean(seen, page)
    text = seen.page.inner_text("main")
    assert "Ranks (1024 of 1024)" in text
    assert "rank 300" in text
    picture(seen.page, "ranks", "section[aria-labelledby=every-rank]")
    seen.page.click("section[aria-labelledby=every-rank] summary")
    assert seen.page.locator("section[aria-labelledby=every-rank] details tbody tr").count() == 1024
    assert seen.messages == []


def test_every_state_drawn_is_a_real_one_and_no_peak_is_lost() -> None:
    """Against a plain walk over a long trace: each moment's sum by category, and the highest of all."""
    generator = np.random.default_rng(0)
    events = 60_000
    birth = np.sort(generator.choice(events, 20_000, replace=False)).astype(np.int64)
    death = np.minimum(birth + generator.integers(1, 3000, len(birth)), events)
    size = generator.integers(1, 1 << 20, len(birth))
    size[777] = 1 << 40  # alive for one event
    death[777] = birth[777] + 1
    kind = generator.integers(0, 3, len(birth))
    delta = np.zeros(events + 1, np.int64)
    np.add.at(delta, birth, size)
    np.subtract.at(delta, death, size)
    live = np.concatenate([[0], np.cumsum(delta)[:-1]])
    at = moments(live, np.zeros_like(live), keep=[5])
    assert len(at) < 4000
    assert {-1, 5, events - 1} <= set(at.tolist())
    drawn = stacked(at, birth, death, size, kind, 3)
    assert drawn.sum(axis=0).max() == live.max()
    assert (drawn.sum(axis=0) == live[at + 1]).all()
    for column in generator.choice(len(at), 20, replace=False).tolist():
        alive = (birth <= at[column]) & (death > at[column])
        assert drawn[:, column].tolist() == [int(size[alive & (kind == each)].sum()) for each in range(3)]


def test_the_page_stays_small_whatever_is_in_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live blocks of sizes at random, each from a stack of its own: what compresses worst. The largest are kept."""
    count, depth, room = 20_000, 20, 200_000
    monkeypatch.setattr(html, "MOST_DATA_BYTES", room)
    generator = np.random.default_rng(0)
    size = generator.integers(1, 1 << 30, count)
    address = np.arange(count, dtype=np.uint64) << np.uint64(31)
    device = DeviceSnapshot(
        device=0,
        trace=empty_trace(),
        segments=Segments(
            address=address, total_bytes=np.full(count, 1 << 30), stream=np.zeros(count, np.uint64),
            large=np.ones(count, np.bool_), expandable=np.zeros(count, np.bool_), pool=np.zeros(count, np.int32),
            stack=np.full(count, -1, np.int32),
        ),
        blocks=Blocks(
            address=address, size=size, requested=size, state=np.full(count, BlockState.ACTIVE_ALLOCATED, np.uint8),
            segment=np.arange(count, dtype=np.int32), stack=np.arange(count, dtype=np.int32),
        ),
    )  # fmt: skip
    frames = tuple(Frame(f"/job/{number}.py", number, f"f{number}") for number in range(1, 1000))
    paths = generator.integers(0, len(frames), (count, depth)).tolist()
    snapshot = Snapshot(devices=(device,), stacks=Stacks(frames=frames, stacks=tuple(map(tuple, paths))))
    report = build_report(Diagnosis(profile=profile.build([snapshot]), findings=()), path="x.pickle")
    found = re.search(r'id="data">([^<]*)<', html.render(report))
    assert found is not None
    assert room / 16 < len(found[1]) <= room


def test_plan_gate_and_words_are_those_of_the_terminal(report: Report) -> None:
    """A page of a report with every part: each heading of the Markdown report stands in it."""
    from oomdoc.reports import markdown

    text = html.render(report)
    for heading in re.findall(r"^#{2,3} (.*)$", markdown.render(report), re.MULTILINE):
        assert heading.replace("\\", "") in text
    assert "Keeps only the inputs of 12 blocks." in text
    assert "return x + h" in text
    assert 'style="' not in text.replace("<style>", "")  # the policy would refuse it


def test_the_policy_names_each_script_by_its_digest(report: Report) -> None:
    text = html.render(report)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    told = policy.group(1).replace("&#39;", "'")
    assert "default-src 'none'" in told
    assert "unsafe" not in told
    assert told.count("sha256-") == text.count("<script>") + text.count("<style>")
    assert "Permission is hereby granted" in text  # the licence of the library goes with it
