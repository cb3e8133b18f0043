"""Words and numbers of titles and evidence."""

from .interface import DeviceProfile, Location
from .source import short_path


def size(count: int) -> str:
    """`24.10 GiB`, `512.0 MiB`, `3.0 KiB`, `17 bytes`: the unit that leaves one to four digits before the point."""
    for unit, scale, digits in (("GiB", 1 << 30, 2), ("MiB", 1 << 20, 1), ("KiB", 1 << 10, 1)):
        if abs(count) >= scale:
            return f"{count / scale:.{digits}f} {unit}"
    return f"{count} bytes"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 or share == 0 else f"{100 * share:.1f} %"


def line(location: Location) -> str:
    """`train.py:40 (main)`, as `short_path` names the file."""
    return f"{short_path(location.file)}:{location.line} ({location.function})"


def moment(profile: DeviceProfile) -> str:
    """When the bytes are counted: "when memory ran out in backward of step 2", "at the peak in forward"."""
    at = profile.oom or profile.peak
    if not len(profile.device_snapshot.trace):
        return "at the dump"
    when = "when memory ran out" if profile.oom else "at the peak"
    where = {"optimizer": " in optimizer.step", None: "", "other": "", "setup": " during set-up"}.get(
        at.phase, f" in {at.phase}"
    )
    return f"{when}{where}" + (f" of step {at.step}" if at.step is not None else "")


def count(number: int, what: str) -> str:
    """`1 tensor`, `12 tensors`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
