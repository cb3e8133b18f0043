"""Text logs as arguments: what is taken for one, reading them, and what to type next."""

import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from ..errors import OomdocError, UnreadableInputError

if TYPE_CHECKING:
    from ..diagnosers.from_log import Log
    from ..diagnosers.interface import Diagnosis
    from ..reports.model import Report

STDIN = "-"
_HEAD_BYTES = 1 << 16
_SNAPSHOT_NAMES = frozenset({".pickle", ".pkl", ".json", ".html", ".htm"})
_SNAPSHOT_KEYS = (b'"segments"', b'"device_traces"', b'"blocks"')
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_TEXT_CONTROLS = frozenset(b"\t\n\r\x0b\x0c\x1b\x08\x07")


def all_logs(targets: Sequence[str]) -> bool:
    """Whether the arguments are logs. Raises OomdocError where logs and snapshots are mixed."""
    found = [target == STDIN or _is_log(Path(target)) for target in targets]
    if any(found) and not all(found):
        raise OomdocError("logs and snapshots are analyzed apart: give the ones or the others")
    return any(found)


def _is_log(path: Path) -> bool:
    """A text that is no container of a snapshot. What cannot be read is left to the reader of snapshots to refuse."""
    if path.suffix.lower() in _SNAPSHOT_NAMES or not path.is_file():
        return False
    try:
        with _opened(path) as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, EOFError, ValueError):
        return False
    return is_log_text(head)


def _opened(path: Path) -> IO[bytes]:
    """The bytes of a log, unpacked where logrotate has packed it."""
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"\x1f\x8b"):
        import gzip

        return cast(IO[bytes], gzip.open(path))
    if head.startswith(b"\xfd7zXZ"):
        import lzma

        return lzma.open(path)
    if head.startswith(b"BZh"):
        import bz2

        return bz2.open(path)
    return path.open("rb")


def is_log_text(head: bytes) -> bool:
    """Judged by the beginning of the file."""
    return is_text(head) and not _is_json(head) and not head.lstrip()[:15].lower().startswith((b"<!doctype", b"<html"))


def is_text(head: bytes) -> bool:
    """Not empty, no NUL (but in UTF-16), and hardly any control characters."""
    if head.startswith(_BYTE_ORDER_MARKS):
        return True
    if not head or b"\0" in head:
        return False
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head[:4096])
    return controls * 50 <= min(len(head), 4096)


def _is_json(head: bytes) -> bool:
    """One JSON value, whole or cut off, and not a log of one JSON object per line."""
    start = head.lstrip()
    if any(key in head for key in _SNAPSHOT_KEYS) and start[:1] in (b"{", b"["):
        return True
    first, _, rest = start.partition(b"\n")
    if _parses(first):
        return not rest.strip() or not first.startswith(b"{")
    return start[:1] == b"{" or start[:2] in (b"[{", b"[\n", b"[]") or _parses(head)


def _parses(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def analyze_logs(targets: Sequence[str]) -> "Report":
    """Raises UnreadableInputError for what is no text."""
    from ..configs.loader import thresholds
    from ..diagnosers.from_log import diagnose
    from ..reports.from_log import build

    log = _read(targets)
    diagnosis = diagnose(log, thresholds())
    return build(log, diagnosis, path=" ".join(targets), next_commands=_next(log, diagnosis))


def _read(targets: Sequence[str]) -> "Log":
    from contextlib import ExitStack

    from ..diagnosers.from_log import read

    with ExitStack() as stack:
        streams: list[tuple[str, IO[bytes]]] = []
        for target in targets:
            if target == STDIN:
                _check_stdin()
                streams.append(("stdin", sys.stdin.buffer))
            else:
                try:
                    streams.append((target, stack.enter_context(_opened(Path(target)))))
                except OSError as error:
                    raise UnreadableInputError(f"cannot read {target}: {error.strerror}") from error
        try:
            return read(streams)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise UnreadableInputError(f"cannot read {' '.join(targets)}: {why}") from error


def _check_stdin() -> None:
    peek = getattr(sys.stdin.buffer, "peek", None)
    head = peek(_HEAD_BYTES) if peek else b""
    if head and not is_text(head):
        raise UnreadableInputError("standard input is no text: a snapshot has to be given as a file")
    if not head:
        raise UnreadableInputError("standard input is empty")


def _next(log: "Log", diagnosis: "Diagnosis") -> tuple[str, ...]:
    from ..diagnosers.oom_forms import Kind

    kinds = {each.message.kind for each in log.logged}
    found = [f"oomdoc explain {finding.code}" for finding in diagnosis.findings[:1]]
    if any(finding.name == "outside-allocator" for finding in diagnosis.findings) or kinds & {
        Kind.LIBRARY,
        Kind.SUSPECT,
    }:
        found.append("oomdoc doctor")
    if kinds & {Kind.DEVICE, Kind.LIBRARY}:
        found.append("oomdoc run train.py")
    if kinds & {Kind.HOST, Kind.KILLED, Kind.WORKER}:
        found.append("dmesg -T | grep -i -E 'oom|killed process'")
    if kinds & {Kind.SHARED, Kind.WORKER}:
        found.append("df -h /dev/shm")
    return tuple(found)
