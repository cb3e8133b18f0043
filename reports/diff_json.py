"""`oomdoc.diff/1`: the stable JSON contract of `oomdoc diff`, described by configs/diff.schema.json."""

import json
from typing import Any

from ..diagnosers.compare import DeviceComparison, Moved
from ..diagnosers.interface import DeviceProfile
from ..diagnosers.matching import Site
from .diff_text import notes
from .model import Diff

SCHEMA = "oomdoc.diff/1"


def render(diff: Diff) -> str:
    """The comparison as indented JSON, with a newline at its end."""
    return json.dumps(to_dict(diff), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_dict(diff: Diff) -> dict[str, Any]:
    devices = diff.comparison.devices
    return {
        "schema": SCHEMA,
        "before": {"path": diff.before_path},
        "after": {"path": diff.after_path},
        "devices": [_device(device) for device in devices],
        "moved": [_row(row, device) for device in devices for row in device.moved],
        "renamed": [_row(row, device) for device in devices for row in device.renamed],
        "inconclusive": [{"code": code, "reason": reason} for code, reason in notes(diff)],
    }


def _device(device: DeviceComparison) -> dict[str, Any]:
    return {
        "rank": device.after.rank,
        "device": device.after.device,
        "bytes": device.bytes,
        "before": _state(device.before),
        "after": _state(device.after),
        "categories": {
            row.category.value: {
                "bytes": row.bytes,
                "before_bytes": row.before_bytes,
                "after_bytes": row.after_bytes,
            }
            for row in device.categories
        },
        "sizes": [
            {
                "size_bytes": row.size_bytes,
                "category": row.category.value,
                "bytes": row.bytes,
                "count": row.after_count - row.before_count,
                "before_count": row.before_count,
                "after_count": row.after_count,
            }
            for row in device.sizes
        ],
    }


def _state(profile: DeviceProfile) -> dict[str, Any]:
    peak = profile.peak
    seen = profile.oom or peak
    return {
        "rank": profile.rank,
        "device": profile.device,
        "at": "out-of-memory" if profile.oom else "peak" if len(profile.device_snapshot.trace) else "dump",
        "event": seen.event,
        "step": seen.step,
        "phase": seen.phase,
        "live_bytes": profile.live_bytes,
        "peak": {
            "requested_bytes": peak.requested_bytes,
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
        },
    }


def _row(row: Moved, device: DeviceComparison) -> dict[str, Any]:
    return {
        "rank": device.after.rank,
        "device": device.after.device,
        "bytes": row.bytes,
        "before_bytes": row.before_bytes,
        "after_bytes": row.after_bytes,
        "count": row.after_count - row.before_count,
        "before_count": row.before_count,
        "after_count": row.after_count,
        "category": row.site.category.value,
        **_where(row.site),
        "match": row.match.value,
        "was": _where(row.before) if row.renamed and row.before else None,
    }


def _where(site: Site) -> dict[str, Any]:
    where = site.location
    return {
        "file": where.file if where else None,
        "line": where.line if where else None,
        "function": where.function if where else None,
        "module": site.module,
    }
