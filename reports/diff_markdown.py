"""A comparison as GitHub-flavoured Markdown."""

from ..diagnosers.compare import DeviceComparison
from .diff_text import counts, notes, ratio, signed, states, summary, title, where
from .markdown import inert, inline_code, table
from .model import Diff
from .text import category_title, size

_LINES, _SIZES = 20, 10


def render(diff: Diff) -> str:
    """The whole comparison; every string of the snapshots is escaped."""
    blocks = ["## Memory change", f"`{inline_code(diff.before_path)}` to `{inline_code(diff.after_path)}`"]
    if not diff.comparison.devices:
        blocks.append("No device is in both recordings.")
    for device in diff.comparison.devices:
        blocks += _device(device, title(device, diff))
    reasons = notes(diff)
    if reasons:
        blocks.append("### To be read with care")
        blocks.append("\n".join(f"- `{inline_code(code)}`: {inert(reason)}" for code, reason in reasons))
    return "\n\n".join(blocks) + "\n"


def _device(device: DeviceComparison, name: str) -> list[str]:
    blocks = [f"### {inert(name)}"] if name else []
    blocks.append(f"**{summary(device)}**")
    state_rows = ((inert(what), inert(old), inert(new)) for what, old, new in states(device))
    blocks.append(table(("", "before", "after"), state_rows))
    if device.categories:
        rows = (
            (category_title(row.category), signed(row.bytes), ratio(row.before_bytes, row.after_bytes),
             size(row.before_bytes), size(row.after_bytes))
            for row in device.categories
        )  # fmt: skip
        blocks.append(table(("category", "change", "", "before", "after"), rows, right=(1, 2, 3, 4)))
    if device.moved:
        blocks += [_lines(device), _sizes(device)]
    if device.renamed:
        places = [f"- {size(row.after_bytes)} `{inline_code(where(row))}`" for row in device.renamed[:_SIZES]]
        more = len(device.renamed) - len(places)
        blocks.append("Moved in the code, the same blocks:")
        blocks.append("\n".join([*places, *([f"- {more} more"] if more else [])]))
    return blocks


def _lines(device: DeviceComparison) -> str:
    rows = [
        (signed(row.bytes), ratio(row.before_bytes, row.after_bytes), counts(row.before_count, row.after_count),
         row.site.category.value, f"`{inline_code(where(row))}`")
        for row in device.moved[:_LINES]
    ]  # fmt: skip
    rest = device.moved[_LINES:]
    if rest:
        rows.append((signed(sum(row.bytes for row in rest)), "", "", "", f"{len(rest)} more"))
    return table(("change", "", "blocks", "for", "line"), rows, right=(0, 1, 2))


def _sizes(device: DeviceComparison) -> str:
    rows = [
        (signed(row.bytes), counts(row.before_count, row.after_count), row.category.value, size(row.size_bytes))
        for row in device.sizes[:_SIZES]
    ]
    rest = device.sizes[_SIZES:]
    if rest:
        rows.append((signed(sum(row.bytes for row in rest)), "", "", f"{len(rest)} more"))
    return table(("change", "blocks", "for", "block size"), rows, right=(0, 1, 3))
