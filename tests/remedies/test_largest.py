"""The search for the largest value that fits: right for every job whose memory grows, and honest about the others."""

from hypothesis import given
from hypothesis import strategies as st
from oomdoc.remedies.largest import Outcome, Probe, Search, largest

ROOM = 40 << 30


def _job(base: int, slope: int, *, bump: int = 0, room: int = ROOM) -> tuple[list[int], object]:
    """A job of `base + slope * value` bytes, with rounding to `bump`; the values that were run."""
    tried: list[int] = []

    def run(value: int) -> Probe:
        tried.append(value)
        peak = base + slope * value
        peak += -peak % bump if bump else 0
        fits = peak <= room
        outcome = Outcome.FITS if fits else Outcome.OUT_OF_MEMORY
        return Probe(value=value, outcome=outcome, allocated_bytes=peak if fits else None, room_bytes=room, steps=3)

    return tried, run


def _value(search: Search) -> int | None:
    return search.largest.value if search.largest else None


@given(
    base=st.integers(0, 60 << 30),
    slope=st.integers(1, 1 << 30),
    bump=st.sampled_from([0, 2 << 20, 1 << 30]),
    low=st.integers(1, 9),
    span=st.integers(0, 5000),
    step=st.integers(1, 16),
)
def test_the_answer_is_that_of_trying_all(base: int, slope: int, bump: int, low: int, span: int, step: int) -> None:
    values = range(low, low + span + 1, step)
    tried, run = _job(base, slope, bump=bump)
    search = largest(values, run)  # type: ignore[arg-type]
    _, again = _job(base, slope, bump=bump)
    fitting = [value for value in values if again(value).outcome is Outcome.FITS]  # type: ignore[operator]
    assert _value(search) == (fitting[-1] if fitting else None)
    assert len(tried) == len(set(tried))
    assert search.monotone
    if search.largest is not None and search.limit is not None:
        assert search.limit.value == search.largest.value + step


def test_a_line_takes_few_runs() -> None:
    tried, run = _job(3 << 30, 200 << 20)
    assert _value(largest(range(1, 513), run)) == 189  # type: ignore[arg-type]
    assert len(tried) <= 7
    tried, run = _job(3 << 30, 200 << 20, room=20 << 30)
    assert _value(largest(range(1, 513), run, {1: (3 << 30) + (200 << 20), 180: (3 << 30) + (180 * 200 << 20)})) == 87  # type: ignore[arg-type]
    assert len(tried) <= 8


def test_a_peak_that_jumps_is_still_found_in_few() -> None:
    """Memory quadratic in the value: the line is always wrong."""
    tried: list[int] = []

    def run(value: int) -> Probe:
        tried.append(value)
        peak = value * value * 100_000
        outcome = Outcome.FITS if peak <= ROOM else Outcome.OUT_OF_MEMORY
        return Probe(value=value, outcome=outcome, allocated_bytes=peak, room_bytes=ROOM, steps=3)

    assert _value(largest(range(1, 4097), run)) == 655
    assert len(tried) <= 9


def test_what_does_not_grow_is_said() -> None:
    def falling(value: int) -> Probe:
        return Probe(value=value, outcome=Outcome.FITS, allocated_bytes=1000 - value, room_bytes=ROOM, steps=3)

    search = largest(range(1, 9), falling)
    assert not search.monotone
    assert "the peak falls from 1 to 8" in " ".join(search.notes)

    def hole(value: int) -> Probe:  # a band in which the job does not fit
        outcome = Outcome.OUT_OF_MEMORY if 10 <= value < 40 or value == 100 else Outcome.FITS
        return Probe(value=value, outcome=outcome, allocated_bytes=None, room_bytes=None, steps=3)

    search = largest(range(1, 101), hole)
    assert not search.monotone
    assert "fits although a smaller value does not" in " ".join(search.notes)


def test_failures_of_another_kind_bound_the_answer_and_are_named() -> None:
    def run(value: int) -> Probe:
        if value == 1 or value > 64:
            return Probe(value=value, outcome=Outcome.FAILED, detail="ValueError: wrong batch")
        return Probe(value=value, outcome=Outcome.FITS, allocated_bytes=value, room_bytes=ROOM, steps=3)

    search = largest(range(1, 129), run)
    assert _value(search) == 64
    assert search.limit is not None
    assert search.limit.outcome is Outcome.FAILED
    assert "65 failed for another reason than memory: ValueError: wrong batch" in " ".join(search.notes) or any(
        "failed for another reason" in note for note in search.notes
    )


def test_nothing_fits() -> None:
    tried, run = _job(50 << 30, 1)
    search = largest(range(1, 100), run)  # type: ignore[arg-type]
    assert (search.largest, tried) == (None, [1])
