"""The terminal report: the whole text, its width, and what becomes of it without colour or UTF-8."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oomdoc.diagnosers.interface import CallSite, Category, Location
from oomdoc.remedies.interface import Verified
from oomdoc.reports import markdown, terminal
from oomdoc.reports.bars import stacked
from oomdoc.reports.figures import Part, grouped, parts
from oomdoc.reports.model import Report
from rich.console import Console

GOLDEN = Path(__file__).parent / "golden"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def same_as_golden(text: str, name: str) -> None:
    """Compares whole; OOMDOC_GOLDEN=write renews the file, to be read in the diff."""
    file = GOLDEN / name
    if os.environ.get("OOMDOC_GOLDEN") == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 200])
def test_the_whole_diagnosis(report: Report, width: int) -> None:
    """As a reader sees it at a narrow and a wide terminal."""
    same_as_golden(terminal.render(replace(report, plan=None), width=width), f"diagnosis-{width}.txt")


@pytest.mark.parametrize("width", [80, 200])
def test_the_whole_plan(report: Report, width: int) -> None:
    """The causes in a sentence each, without lines and evidence: the changes are what was asked for."""
    same_as_golden(terminal.render(report, width=width), f"plan-{width}.txt")


def test_a_run_that_fits(healthy: Report) -> None:
    """No failure, no plan, a capacity nobody knows: those parts are absent, not zero."""
    same_as_golden(terminal.render(healthy, width=80), "terminal-healthy.txt")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    """Except the commands, which must stay in one piece to be pasted."""
    for line in terminal.render(report, width=width).splitlines():
        assert len(line) <= width or line.startswith("$ ")


def test_colour_is_only_drawn_when_asked_for(report: Report) -> None:
    """Without it there is no escape sequence; with it the text is the same, all bars solid."""
    plain, coloured = terminal.render(report), terminal.render(report, color="truecolor")
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    stripped = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
    solid = str.maketrans("▓▒░", "███")
    assert stripped == plain.translate(solid).splitlines()


def test_plain_ascii(report: Report) -> None:
    """On a terminal without UTF-8 every sign has a stand-in, and bars keep their fills apart."""
    text = terminal.render(report, ascii_only=True)
    assert text.isascii()
    assert "?" not in text.replace("39.00 GiB ?", "")  # the verdict that is not known
    assert text.count("#") > 20
    assert "%%" in text


def test_lines_of_the_user_are_shown_with_the_one_meant_marked(report: Report) -> None:
    """The excerpt comes from the file as it is here; a file that is not here is named only."""
    text = terminal.render(replace(report, plan=None))
    assert "> 6 │     h = self.mlp(h)" in text
    assert "/nowhere/lib.py:9 in helper" in text


sizes = st.lists(st.integers(min_value=1, max_value=2**38), min_size=1, max_size=14)


@given(sizes=sizes, width=st.integers(min_value=40, max_value=250))
def test_the_bar_fills_its_width(sizes: list[int], width: int) -> None:
    """Whatever the shares, rounding never adds or loses a cell, and no part is drawn more than a cell off."""
    rows = tuple(Part(f"part{index}", "", size, "") for index, size in enumerate(sizes))
    whole = sum(sizes)
    bar = stacked(rows, whole, width)
    assert bar.cell_len == width
    drawn = [span.end - span.start for span in bar.spans] or [width]
    assert sum(drawn) == width or len(sizes) > len(bar.spans)
    done = 0
    for row in rows:
        done += row.bytes
    assert done == whole


def test_parts_sum_to_the_capacity(report: Report) -> None:
    """Tensors, rounding, cache, outside and free are the whole card, no byte twice."""
    device = report.diagnosis.profile.devices[0]
    assert sum(part.bytes for part in parts(device)) == device.capacity_bytes


def test_markup_in_names_is_inert(report: Report) -> None:
    """A module called [red] is text and not a style."""
    finding = replace(report.diagnosis.findings[0], title="[bold red]boo[/] \x1b[31mred \u202eback")
    text = terminal.render(replace(report, diagnosis=replace(report.diagnosis, findings=(finding,))))
    assert "[bold red]boo[/]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_rich_measures_the_fills_as_one_cell() -> None:
    """The width above counts characters: each fill is one cell wide."""
    assert all(Console(width=80).measure(sign).maximum == 1 for sign in "█▓▒░·▏▎▍▌▋▊▉")


def test_a_command_is_never_cut(report: Report) -> None:
    """However narrow the terminal: it is there to be pasted."""
    command = "oomdoc run --gpu a100-40gb " + "very/" * 60 + "long.py"
    text = terminal.render(replace(report, next_commands=(command,)), width=60)
    assert f"$ {command}\n" in text


def test_layers_are_one_row_of_the_table() -> None:
    """The same line in like modules is one call site; another line, category or kind of module is another."""
    here, there = Location("m.py", 1, "f"), Location("m.py", 2, "f")

    def site(size: int, module: str | None, where: Location = here) -> CallSite:
        return CallSite(bytes=size, count=1, category=Category.ACTIVATION, location=where, module=module)

    rows = grouped(
        [
            site(3, "blocks.0.mlp"),
            site(4, "blocks.11.mlp"),
            site(5, "blocks.0.mlp2"),
            site(9, None),
            site(1, "h.1", there),
        ]
    )
    assert [(row.bytes, row.count, row.module) for row in rows] == [
        (9, 1, None), (7, 2, "blocks.*.mlp"), (5, 1, "blocks.0.mlp2"), (1, 1, "h.1"),
    ]  # fmt: skip


def test_what_does_not_fit_is_no_way_to_make_it_fit(report: Report) -> None:
    """Shown only where nothing fits, under a heading that says so, the closest first."""
    plan = report.plan
    assert plan is not None
    first, second, third = plan.candidates
    seen = Verified(on="virtual", peak_bytes=60 << 30, reserved_bytes=60 << 30, fits=False)
    over = replace(second, fits=False)
    refuted = replace(first, verified=seen)
    some = replace(report, plan=replace(plan, candidates=(third, refuted, over)))
    for text in (terminal.render(some, width=200), markdown.render(some)):
        rows = text[re.search("What would make it fit|### Remedies", text).start() :]  # type: ignore[union-attr]
        assert "mixed-precision" in rows
        assert "gradient-accumulation" not in rows
        assert "Nothing tried" not in rows
    assert "2 more in --format json, those that do not fit among them" in terminal.render(some, width=200)
    none = replace(report, plan=replace(plan, candidates=(refuted, over)))
    for text in (terminal.render(none, width=200), markdown.render(none)):
        after = text[text.index("Nothing tried makes it fit; closest:") :]
        assert after.index("gradient-accumulation") < after.index("activation-checkpointing")
        assert "What would make it fit" not in text
