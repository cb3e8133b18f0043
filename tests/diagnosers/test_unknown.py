"""What is said of bytes that nothing known holds: the line that made them, and torch.load by its name."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from oomdoc.diagnosers.diagnose import UNKNOWN_CODE, diagnose  # noqa: E402  (torch may be absent)
from oomdoc.diagnosers.interface import Category, DeviceProfile  # noqa: E402
from oomdoc.diagnosers.profile import build  # noqa: E402
from oomdoc.recorders.virtual.recorder import target_of  # noqa: E402
from oomdoc.recorders.virtual.session import virtual_session  # noqa: E402

FLOATS = 1 << 20  # 4 MiB
LOAD = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(")  # here"))


def reason_and_profile(path: Path, **options: object) -> tuple[str, DeviceProfile]:
    """A checkpoint that was saved from the GPU, read again, beside a tensor that was not loaded."""
    with virtual_session(target_of("a100-40gb")) as session:
        torch.save({"w": torch.ones(FLOATS, device="cuda")}, path)
        state = torch.load(path, **options)  # here
        beside = torch.ones(2 * FLOATS, device="cuda")
        profile = build([session.snapshot()])
        del state, beside
    [reason] = [each.reason for each in diagnose(profile).inconclusive if each.code == UNKNOWN_CODE]
    return reason, profile.devices[0]


def test_a_checkpoint_on_the_gpu_is_named_with_its_line(tmp_path: Path) -> None:
    reason, device = reason_and_profile(tmp_path / "x.pt")
    assert f"test_unknown.py:{LOAD}" in reason
    assert '4.0 MiB came from torch.load: map_location="cpu"' in reason
    assert "`oomdoc run`" not in reason  # it was recorded by it
    [site] = [each for each in device.call_sites if each.location and each.location.line == LOAD]
    assert (site.category, site.bytes) == (Category.UNKNOWN, 4 * FLOATS)


def test_a_checkpoint_on_the_host_is_not(tmp_path: Path) -> None:
    reason, device = reason_and_profile(tmp_path / "x.pt", map_location="cpu")
    assert "torch.load" not in reason
    assert device.bytes_of(Category.UNKNOWN) == 8 * FLOATS
