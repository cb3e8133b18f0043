"""The parts of `oomdoc.report/1` that come from a log: numbers that no message carries are null."""

from typing import Any

from ..diagnosers.from_log import Log, Logged, cached, derive, reserved

_COPIED = (
    "format", "rank", "local_rank", "device", "tried_bytes", "total_bytes", "free_bytes", "process_bytes",
    "allocated_bytes", "cached_bytes", "reserved_bytes", "allowed_bytes", "private_pool_bytes", "active_bytes",
    "other_bytes", "backend", "text",
)  # fmt: skip
_DERIVED = ("outside_bytes", "own_outside_bytes", "others_bytes", "fragmentation_possible", "setting_can_help")


def devices(log: Log) -> list[dict[str, Any]]:
    """One entry per rank and device that failed with numbers."""
    return [_device(each) for each in log.devices]


def section(log: Log) -> dict[str, Any]:
    return {
        "lines": log.lines,
        "bytes": log.bytes,
        "messages": [_message(each) for each in log.logged],
        "left_out": log.left_out,
    }


def _message(logged: Logged) -> dict[str, Any]:
    message, derived = logged.message, derive(logged.message)
    content: dict[str, Any] = {"file": logged.file, "line": logged.line, "times": logged.times}
    content |= {name: getattr(message, name) for name in _COPIED}
    content |= {name: getattr(derived, name) for name in _DERIVED}
    content["kind"] = message.kind.value
    content["processes"] = [{"pid": pid, "bytes": held} for pid, held in message.processes]
    content["cached_bytes"], content["reserved_bytes"] = cached(message), reserved(message)
    return content


def _device(logged: Logged) -> dict[str, Any]:
    message = logged.message
    spare = cached(message)
    return {
        "rank": message.rank,
        "device": message.device,
        "capacity_bytes": message.total_bytes,
        "start_bytes": None,
        "final_bytes": None,
        "peak": {
            "requested_bytes": None,
            "allocated_bytes": None,  # what was allocated at the failure need not be the peak
            "reserved_bytes": None,
            "event": None,
            "step": None,
            "phase": None,
        },
        "categories": {},
        "cached": None
        if spare is None
        else {"bytes": spare, "fragmented_bytes": None, "largest_free_block_bytes": None},
        "outside_bytes": derive(message).outside_bytes,
        "oom": {"requested_bytes": message.tried_bytes, "device_free_bytes": message.free_bytes, "event": None},
        "call_sites": [],
    }
