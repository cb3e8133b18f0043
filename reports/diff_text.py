"""What the renderers of a comparison share: its sentences."""

from ..diagnosers.call_sites import module_label
from ..diagnosers.compare import DeviceComparison, Moved
from ..diagnosers.interface import DeviceProfile
from ..diagnosers.matching import Match
from .model import Diff
from .text import category_title, moment, place, size

_MATCHES = {
    Match.LINE: "",
    Match.FUNCTION: "same function",
    Match.MODULE: "same module",
    Match.SIZES: "same sizes",
    Match.CATEGORY: "no line",
}


def signed(count: int) -> str:
    """`+1.20 GiB`, `-3.0 KiB`."""
    return f"+{size(count)}" if count > 0 else size(count)


def ratio(before: int, after: int) -> str:
    """`x2.00`; `new`, `gone`; empty where nothing changed."""
    if not before:
        return "new" if after else ""
    return f"x{after / before:.2f}" if after else "gone"


def counts(before: int, after: int) -> str:
    """`24 to 48`, or the one number."""
    return str(after) if before == after else f"{before} to {after}"


def where(row: Moved) -> str:
    """Line and module as they are now, how they were found to be the same, and what they were before."""
    site = row.site
    found = place(site.location, brief=True)
    if site.module:
        found += f" · {module_label(site.module)}"
    how = _MATCHES.get(row.match, "")
    if not how:
        return found
    return f"{found} ({how}{was(row)})"


def was(row: Moved) -> str:
    """`, before: train.py:7 in forward`; empty where it is the same."""
    if row.before is None or row.after is None or not row.renamed:
        return ""
    old = row.before
    told = place(old.location, brief=True) if old.location != row.after.location else ""
    module = module_label(old.module) if old.module and old.module != row.after.module else None
    return f", before: {' · '.join(each for each in (told, module) if each)}"


def title(device: DeviceComparison, diff: Diff) -> str:
    """Names rank and device where there is more than one, or where they differ."""
    before, after = device.before, device.after
    name = f"rank {after.rank}, device {after.device}"
    if (before.rank, before.device) != (after.rank, after.device):
        return f"rank {before.rank}, device {before.device} against {name}"
    comparison = diff.comparison
    alone = len(comparison.devices) == 1 and not comparison.only_before and not comparison.only_after
    return "" if alone else name


def summary(device: DeviceComparison) -> str:
    """One sentence: how much it moved, and which category moved most in that direction."""
    before, after = device.before.live_bytes, device.after.live_bytes
    if not device.moved and before == after:
        return f"No change: {size(after)} of live tensors in both."
    told = f"Live tensors {size(before)} to {size(after)}: {signed(after - before)}"
    if before and after != before:
        told += f", {ratio(before, after)}"
    same_way = [row for row in device.categories if (row.bytes > 0) == (after > before)]
    if not same_way:
        return f"{told}."
    top = same_way[0]
    return f"{told}; most of it {category_title(top.category)} ({signed(top.bytes)})."


def states(device: DeviceComparison) -> tuple[tuple[str, str, str], ...]:
    """Rows of (what, before, after): the moment looked at, and the peaks."""
    before, after = device.before, device.after
    peaks = [("peak allocated", before.peak.allocated_bytes, after.peak.allocated_bytes),
             ("peak reserved", before.peak.reserved_bytes, after.peak.reserved_bytes),
             ("peak requested", before.peak.requested_bytes, after.peak.requested_bytes)]  # fmt: skip
    rows = [(name, _known(old), _known(new)) for name, old, new in peaks]
    return (("compared at", at(before), at(after)), *rows)


def _known(count: int | None) -> str:
    return "not known" if count is None else size(count)


def at(profile: DeviceProfile) -> str:
    """`the peak (step 2, backward)`; of a recording without events, the moment it was written."""
    if not len(profile.device_snapshot.trace):
        return "the dump"
    seen, name = (profile.oom, "the failure") if profile.oom else (profile.peak, "the peak")
    when = moment(seen.step, seen.phase)
    return f"{name} ({when})" if when else name


def notes(diff: Diff) -> tuple[tuple[str, str], ...]:
    """(code, reason) of what could not be compared, or only with care."""
    found: list[tuple[str, str]] = []
    comparison = diff.comparison
    for side, only in (("before", comparison.only_before), ("after", comparison.only_after)):
        found += [(side, f"rank {each.rank}, device {each.device} is in this recording only") for each in only]
    for device in comparison.devices:
        name = f"rank {device.after.rank}, device {device.after.device}"
        if (device.before.oom is None) != (device.after.oom is None):
            failed = "after" if device.after.oom else "before"
            found.append((failed, f"{name}: this recording ends out of memory, and is compared as far as it came"))
        for side, profile in (("before", device.before), ("after", device.after)):
            if not len(profile.device_snapshot.trace):
                found.append((side, f"{name}: no events, so it is the state when it was written that is compared"))
            found += [(side, f"{name}: {problem}") for problem in profile.problems]
    return tuple(found)
