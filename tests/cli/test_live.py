"""`--live`: bars of what the ranks send, and nothing of it where there is no terminal."""

import io
import subprocess
from collections.abc import Callable
from pathlib import Path

from oomdoc.cli.live import Board, bar
from rich.console import Console

Run = Callable[..., subprocess.CompletedProcess[str]]
GIB = 2**30
RECORD = {
    "rank": 0, "step": 3, "phase": "backward", "allocated_bytes": 20 * GIB, "peak_bytes": 30 * GIB,
    "reserved_bytes": 30 * GIB, "free_bytes": 9 * GIB, "total_bytes": 40 * GIB,
    "parts": {"parameter": 4 * GIB, "gradient": 4 * GIB, "optimizer_state": 8 * GIB},
}  # fmt: skip


def test_a_bar_is_the_card_from_end_to_end() -> None:
    """Parameters, gradients, state and the rest, then cached, then free: 4 + 4 + 8 + 4, 10, 10 of 40 GiB."""
    text = bar(RECORD, 40)
    assert text.plain == "█" * 30 + "░" * 10
    cells = {str(span.style): span.end - span.start for span in text.spans}
    assert cells == {"blue": 4, "green": 4, "magenta": 8, "yellow": 4, "bright_black": 10, "dim": 10}
    assert bar({"rank": 0}, 10).plain == "░" * 10


def test_the_board_shows_the_fullest_of_many_ranks() -> None:
    board = Board()
    for rank in range(40):
        board.saw({**RECORD, "rank": rank, "allocated_bytes": rank * GIB})
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(board.draw(110))
    shown = console.export_text()
    assert "rank 39" in shown
    assert "rank 3 " not in shown
    assert "24 more ranks" in shown
    assert "step 3, backward · 39.00 GiB, peak 30.00 GiB · 9.00 GiB free" in shown


def test_without_a_terminal_it_is_quiet(oomdoc: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(1000, device='cuda')\n")
    done = oomdoc("run", "--gpu", "t4", "--live", "train.py")
    assert done.returncode == 0
    assert "\x1b" not in done.stderr
    assert "█" not in done.stderr
