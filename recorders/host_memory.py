"""Host memory: of a process, of the cgroup that bounds it, of /dev/shm; and how often the kernel killed for lack of it.

Linux's files are read as they are; where there are none, the answers are None. Bytes.
"""

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
SHM = Path("/dev/shm")
_UNLIMITED = 1 << 60  # cgroup v1 writes a number of about 2**63 for no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a cgroup may use. `used_bytes` counts the page cache as well, which the kernel takes back first."""

    limit_bytes: int
    used_bytes: int
    what: str  # the file, for a message


def peak_rss_bytes(pid: int | str = "self") -> int | None:
    return _status(pid, "VmHWM")


def _status(pid: int | str, key: str) -> int | None:
    try:
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def total_bytes() -> int | None:
    try:
        return int((PROC / "meminfo").read_text().split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None


def limit() -> Limit | None:
    """The tightest cgroup limit on this process; None where there is none."""
    found = [each for folder in _folders() if (each := _limit_in(folder)) is not None]
    return min(found, key=lambda each: each.limit_bytes, default=None)


def _limit_in(folder: Path) -> Limit | None:
    for most, now in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        value, used = _number(folder / most), _number(folder / now)
        if value is not None and value < _UNLIMITED:
            return Limit(limit_bytes=value, used_bytes=used or 0, what=str(folder / most))
    return None


def kernel_kills() -> int | None:
    """How many processes the kernel killed for lack of memory: in this cgroup and below, else on the machine."""
    counts = [count for folder in _folders() if (count := _event(folder / "memory.events")) is not None]
    if counts:
        return max(counts)
    return _event(PROC / "vmstat")


def _event(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return None
    return next((int(word[1]) for word in words if len(word) == 2 and word[0] == "oom_kill"), None)


def _folders() -> list[Path]:
    """The cgroup of this process and those above it, v2 and v1."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = CGROUP / "memory" if controllers else CGROUP
        folder = root / path.lstrip("/")
        found += [each for each in (folder, *folder.parents) if each.is_relative_to(root) and each.is_dir()]
    return list(dict.fromkeys(found))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def shm() -> tuple[int, int] | None:
    """(total, free) of /dev/shm, through which DataLoader workers pass batches."""
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
