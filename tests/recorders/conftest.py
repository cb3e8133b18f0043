"""A small virtual GPU for tests: the real session, a made-up card."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from oomdoc.recorders.virtual.device import GpuTarget  # noqa: E402  (torch may be absent)
from oomdoc.recorders.virtual.session import Session, virtual_session  # noqa: E402

MIB = 1 << 20
A100_LIKE = GpuTarget(
    name="test-gpu",
    total_bytes=40960 * MIB,
    context_bytes=500 * MIB,
    sm_count=108,
    threads_per_sm=2048,
    compute_capability=(8, 0),
)


@pytest.fixture
def gpu() -> Iterator[Session]:
    """A virtual A100-like card for the test's duration."""
    with virtual_session(A100_LIKE) as session:
        yield session


@pytest.fixture
def card() -> GpuTarget:
    """What `gpu` pretends to be."""
    return A100_LIKE
