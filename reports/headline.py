"""The words at the head of a report and of its sections, the same in every renderer."""

from ..diagnosers.interface import DeviceProfile
from .model import Report
from .text import device_title, moment, size

_KINDS = {"virtual": "virtual GPU", "cuda": "recorded on CUDA", "log": "a log"}


def headline(report: Report) -> str:
    verdict = report.verdict
    if verdict.out_of_memory:
        return "Out of memory"
    if verdict.ended is not None:
        return f"The script ended early ({verdict.ended})"
    if verdict.device is None and report.source.kind != "log":
        return "No GPU memory recorded"
    return "No out of memory"


_SHOWN_RANKS = 16
_SHOWN_ON_HOST = 16 << 20  # below, nothing was offloaded: a tokenizer's tables, counters
_ON_HOST = {"parameter": "parameters", "optimizer_state": "optimizer state", "pinned": "pinned"}


def facts(report: Report) -> tuple[str, ...]:
    """Card, kind of recording, torch and ranks, as far as they are known."""
    source = report.source
    found = [source.gpu or "", _KINDS[source.kind]]
    if source.torch:
        found.append(f"torch {source.torch}")
    if source.kind == "log" and source.ranks:
        found.append(f"rank {ranks(source.ranks)}")  # how many there were, the log need not say
    elif source.world_size > 1 and source.ranks:
        found.append(f"rank {ranks(source.ranks)} of {source.world_size}")
    found += _on_host(report)
    return tuple(fact for fact in found if fact)


def host_bytes(device: DeviceProfile) -> dict[str, int] | None:
    """What the rank kept in the host's memory at the end, by role; None where the recording does not tell."""
    recording = device.snapshot.recording
    told = recording.facts.get("host") if recording else None
    if not isinstance(told, dict):
        return None
    return {role: told[role] for role in _ON_HOST if isinstance(told.get(role), int)}


def _on_host(report: Report) -> list[str]:
    """Of the rank that keeps the most there: offloading needs room too."""
    told = [found for device in report.diagnosis.profile.devices if (found := host_bytes(device))]
    most = max(told, key=lambda each: sum(each.values()), default={})
    parts = [f"{size(most[role])} {words}" for role, words in _ON_HOST.items() if most.get(role, 0) >= _SHOWN_ON_HOST]
    return [f"in host memory: {', '.join(parts)}"] if parts else []


def ranks(numbers: tuple[int, ...]) -> str:
    if len(numbers) > 4 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    shown = numbers if len(numbers) <= _SHOWN_RANKS else numbers[: _SHOWN_RANKS // 2]
    more = f" and {len(numbers) - len(shown)} more" if len(shown) < len(numbers) else ""
    return ", ".join(str(rank) for rank in shown) + more


def memory_heading(report: Report, device: DeviceProfile) -> str:
    """`Memory at the failure (rank 0, step 2, backward)`."""
    name = device_title(device, report.source.world_size, len(report.diagnosis.profile.devices))
    at = "at the failure" if device.oom else "at the peak"
    when = moment(device.oom.step, device.oom.phase) if device.oom else moment(device.peak.step, device.peak.phase)
    extra = ", ".join(part for part in (name, when) if part)
    return f"Memory {at}{f' ({extra})' if extra else ''}"


def assumed_heading(report: Report) -> str:
    return "Assumed by the virtual GPU" if report.source.kind == "virtual" else "Assumed by the recorder"


def replay_heading(device: int, alloc_conf: str | None) -> str:
    return f"Replay of device {device}" + (f" under {alloc_conf}" if alloc_conf else "")
