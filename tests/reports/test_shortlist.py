"""Which rows of a plan a terminal shows."""

from oomdoc.remedies.interface import Band, ByteBand, Candidate, Estimate, Numerics, Setting
from oomdoc.reports.shortlist import shortened


def _row(name: str, time: float, numerics: Numerics = Numerics.IDENTICAL, **options: int) -> Candidate:
    band = ByteBand(low=1, expected=2, high=3)
    factor = Band(low=time, expected=time, high=time)
    estimate = Estimate(
        settings=(Setting(name=name, options=options),),
        predicted_peak_bytes=band,
        saves_bytes=1,
        step_time_factor=factor,
        numerics=numerics,
        why="",
    )
    return Candidate(estimate=estimate, fits=True)


def test_many_settings_of_one_change_leave_room_for_the_fastest_and_for_other_kinds() -> None:
    counts = [_row("gradient-accumulation", 1 + m / 20, micro_batches=m) for m in (2, 4, 8, 16, 32)]
    others = [_row("activation-checkpointing", 1.3), _row("cpu-offload", 1.4)]
    fast = _row("mixed-precision", 0.6, Numerics.EQUIVALENT)
    rows = [*counts, *others, fast, _row("smaller-batch", 0.1, Numerics.CHANGED)]
    shown = shortened(rows, 5)
    assert shown == (counts[0], *others, fast, rows[-1])
    assert shortened(rows, 2) == (counts[0], fast)
    assert shortened(rows, 20) == tuple(rows)
