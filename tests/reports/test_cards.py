"""What NVML told of the cards while a job ran: from the launcher's file to the report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from oomdoc.cli.rank_files import cards_in
from oomdoc.recorders import nvml
from oomdoc.recorders.overseer import Overseer
from oomdoc.reports import cards, markdown, terminal
from oomdoc.reports.html import page
from oomdoc.reports.model import CardSamples, Held, Report

GIB = 1 << 30
CARD = CardSamples(
    host="node1",
    card="GPU-1",
    total_bytes=80 * GIB,
    seconds=(0.0, 2.0, 6.0),
    used_bytes=(10 * GIB, 72 * GIB, 60 * GIB),
    held=(
        Held(process="process 99", own=False, bytes=(5 * GIB, 5 * GIB, 5 * GIB)),
        Held(process="rank 0", own=True, bytes=(5 * GIB, 66 * GIB, 55 * GIB),
             reserved_bytes=(3 * GIB, 64 * GIB, 53 * GIB)),
    ),
)  # fmt: skip


def test_the_launchers_samples_are_read_back_by_process(tmp_path: Path) -> None:
    """A rank's memory is split by what its allocator reserved; that of a process on two cards is not."""
    overseer = Overseer(tmp_path)
    overseer.heard({"rank": 3, "pid": 7, "reserved_bytes": 6 * GIB})
    overseer.heard({"rank": 4, "pid": 8, "reserved_bytes": 2 * GIB})

    def card(name: str, *held: tuple[int, int]) -> nvml.Card:
        holders = tuple(nvml.Holder(pid=pid, used_bytes=used) for pid, used in held)
        used = sum(each for _, each in held) + GIB
        return nvml.Card(
            index=0, name="x", driver="y", uuid=name, total_bytes=80 * GIB, used_bytes=used, holders=holders
        )

    overseer._keep([card("GPU-a", (7, 8 * GIB), (50, GIB)), card("GPU-b", (8, 3 * GIB)), card("GPU-c", (8, GIB))])
    overseer._keep([card("GPU-a", (7, 9 * GIB)), card("GPU-b", (8, 3 * GIB)), card("GPU-d", (51, GIB))])
    overseer.conclude((), None)
    found = {each.card: each for each in cards_in(tmp_path)}
    assert list(found) == ["GPU-a", "GPU-b", "GPU-c"]  # the fourth is of no rank of this job
    first, other = found["GPU-a"].held
    assert (first.process, first.own, first.bytes, first.reserved_bytes) == (
        "rank 3", True, (8 * GIB, 9 * GIB), (6 * GIB, 6 * GIB)
    )  # fmt: skip
    assert (other.process, other.own, other.bytes) == ("process 50", False, (GIB, 0))
    assert found["GPU-c"].held[0].reserved_bytes is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cards": [{"time": 1}]}', '{"cards": [{"time": "x", "cards": 3}]}'])
def test_a_file_that_cannot_be_read_is_no_card(tmp_path: Path, text: str) -> None:
    (tmp_path / "node-a.json").write_text(text)
    assert cards_in(tmp_path) == ()


def test_samples_of_before_the_allocators_share_was_kept(tmp_path: Path) -> None:
    row = {"uuid": "GPU-1", "used_bytes": 9, "total_bytes": 10, "holders": [[7, 8]]}
    (tmp_path / "node-a.json").write_text(json.dumps({"ranks": {"7": 0}, "cards": [{"time": 1, "cards": [row]}]}))
    [card] = cards_in(tmp_path)
    assert [(each.name, each.bytes) for each in cards.layers(card)] == [("rank 0", (8,)), ("no process named", (1,))]


def test_layers_sum_to_what_is_used() -> None:
    found = cards.layers(CARD)
    assert [each.name for each in found] == [
        "rank 0, PyTorch's allocator", "rank 0, outside it", "process 99, not of this job", "no process named"
    ]  # fmt: skip
    assert tuple(map(sum, zip(*(each.bytes for each in found), strict=True))) == CARD.used_bytes


def test_the_picture_has_a_shape_for_each_layer() -> None:
    (_, first), *_, (_, last) = cards.shapes(CARD)
    assert first.split()[:3] == ["0.0,192.50", "333.3,40.00", "1000.0,67.50"]  # 3, 64 and 53 of 80 GiB
    assert last.split()[1] == "333.3,20.00"  # 72 of 80 GiB
    assert len(cards.shapes(CARD)) == 4


def test_every_report_tells_of_the_cards(report: Report) -> None:
    shown = replace(report, cards=(CARD, replace(CARD, card="<b>GPU</b>")))
    sentence = (
        "GPU-1 of node1: at most 72.00 GiB of 80.00 GiB, at 2 s: rank 0, PyTorch's allocator 64.00 GiB, "
        "rank 0, outside it 2.00 GiB, process 99, not of this job 5.00 GiB, no process named 1.00 GiB"
    )
    assert sentence in terminal.render(shown, width=400)
    assert "### Cards over time" in markdown.render(shown)
    html = page.render(shown)
    assert html.count('<svg class="card"') == 2
    assert "<b>GPU</b>" not in html
    assert "Cards over time" not in page.render(report)
