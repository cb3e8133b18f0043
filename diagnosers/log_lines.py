"""The few lines of a large log that may speak of memory, found at the speed of reading it.

A needle of 11 bytes or more covers two neighbouring aligned 4-byte words wherever it lies: one hash table look-up per
word of the log is enough to find all needles at once, in any case of letters. What is found is a candidate; the parser
decides.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 17
ENDLESS_BYTES = 4 * CHUNK_BYTES  # a line that has not ended by then is looked at in pieces
FOLLOWING_BYTES = 3 << 10  # the table of memory_summary, and messages that a console broke
LONGEST_LINE = 1 << 12  # of a longer one (progress bars, JSON) only what is near the needle is looked at

NEEDLES = (
    b"out of memory",
    b"out-of-memory",
    b"available memory for",
    b"kv cache is needed",
    b"free memory on device",
    b"enough memory. please",
    b"enough memory: you tried",
    b"allocate memory",
    b"shared memory",
    b"cuda memory summary",
    b"status_alloc_failed",
    b"status_not_initialized",
    b"_alloc_failed",
    b"cudaerrormemoryallocation",
    b"when allocating tensor",
    b"to cuda calloc",
    b"unhandledcudaerror",
    b"unhandled cuda error",
    b"exitcode: -",
    b"return code = -",
    b"exit code 137",
    b"exit code 135",
    b"exit code: 137",
    b"exit code: 135",
    b"exit status 137",
    b"exited with code 137",
    b"dataloader worker",
    b"oom_kill event",
    b"oom-kill event",
    b"oom-kill:constraint",
    b"reason: oomkilled",
    b'"oomkilled"',
    b"unexpected bus error",
    b"signal 9 (sigkill)",
    b"signal 7 (sigbus)",
    b"error: unable to allocate",
    b"failed to allocate",
)
SHORT = (b"\nkilled", b" killed ")  # one word each: a bare line, and the shell's report of a child
_FOLD = np.uint32(0x20202020)  # makes letters small; other bytes change too, on both sides alike
_FACTOR = np.uint32(2654435761)
_SHIFT = np.uint32(16)
_NEWLINE = np.uint8(ord("\n"))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line with one of the needles."""

    number: int  # from 1
    line: str
    after: str  # the lines behind it


class Scan:
    """Reads a log once; after the last candidate, `lines` and `bytes` tell how much it was."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = _as_utf8(stream)
        self._search = _Search(2 * ENDLESS_BYTES)
        self.lines = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[Candidate]:
        data = b"\n"  # always begins with the end of the line before
        while True:
            more = self._stream.read(CHUNK_BYTES)
            self.bytes += len(more)
            if not more:
                unended = not data.endswith(b"\n")
                data += b"\n" * 8 if unended else b"\n" * 7
                yield from self._candidates(data, len(data))
                self.lines += self._search.newlines(data) - 8
                return
            data += more
            whole = _whole_lines(data)
            yield from self._candidates(data, whole)
            self.lines += self._search.newlines(data[1 : whole + 1])
            data = data[whole:]

    def _candidates(self, data: bytes, end: int) -> Iterator[Candidate]:
        number, counted, seen = self.lines + 1, 1, -1
        for place in self._search(data):
            if place >= end or place <= seen:
                continue
            start = data.rfind(b"\n", 0, place) + 1
            stop = data.find(b"\n", place)
            stop = len(data) if stop < 0 else stop
            number += data.count(b"\n", counted, start)
            counted = start
            first, last = max(start, place - LONGEST_LINE // 2), min(stop, place + LONGEST_LINE)
            seen = last
            line = data[first:last]
            if _has_needle(line.lower()):
                yield Candidate(number, _text(line), _text(data[stop + 1 : stop + 1 + FOLLOWING_BYTES]))


class _Search:
    """With arrays that are made once: new ones as large are mapped, and faulted in, each time anew."""

    def __init__(self, size: int) -> None:
        self._hashes = np.empty(size // 4, np.uint32)
        self._index = np.empty(size // 4, np.intp)
        self._found = np.empty(size, np.bool_)

    def __call__(self, data: bytes) -> list[int]:
        """Places on lines with a needle, in order; others may be among them. `data` begins and ends with newlines."""
        words = np.frombuffer(data, np.uint32, count=len(data) // 4)
        hashes, index, found = self._hashes[: len(words)], self._index[: len(words)], self._found[: len(words)]
        np.bitwise_or(words, _FOLD, out=hashes)
        np.multiply(hashes, _FACTOR, out=hashes)
        np.right_shift(hashes, _SHIFT, out=index, casting="unsafe")
        at = np.flatnonzero(BEGINS.take(index, out=found, mode="clip"))
        at = at[at + 1 < len(words)]
        at = at[(FIRST[index[at]] & SECOND[index[at + 1]]) != 0]
        # the word may begin with the newline before a needle: its last byte is on the needle's line
        return [4 * int(each) + 3 for each in at]

    def newlines(self, data: bytes) -> int:
        found = np.equal(np.frombuffer(data, np.uint8), _NEWLINE, out=self._found[: len(data)])
        return int(np.count_nonzero(found))


def _has_needle(line: bytes) -> bool:
    """`line` is in small letters, as the needles are."""
    return any(needle in line for needle in NEEDLES) or line.startswith(b"killed") or b" killed " in line


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """By hash of a folded word: which bits may follow it; and which bits it satisfies as the second word."""
    first, second = np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8)
    for number, needle in enumerate(NEEDLES):
        bit = 1 << number % 7
        for offset in range(4):
            first[_hash(needle[offset : offset + 4])] |= bit
            second[_hash(needle[offset + 4 : offset + 8])] |= bit
    second |= 1 << 7
    for needle in SHORT:
        for offset in range(4):
            first[_hash(needle[offset : offset + 4])] |= 1 << 7
    return first, second


def _hash(word: bytes) -> int:
    value = np.frombuffer(word, np.uint32) | _FOLD
    return int(((value * _FACTOR) >> _SHIFT)[0])


FIRST, SECOND = _tables()
BEGINS: NDArray[np.bool_] = FIRST != 0


def _whole_lines(data: bytes) -> int:
    """Up to which newline to look at `data` now: whole lines, with room behind them for what follows a message.

    A line that does not end is cut where it is longer than any message.
    """
    cut = data.rfind(b"\n", 1, max(1, len(data) - FOLLOWING_BYTES))
    return cut if cut > 0 else 0 if len(data) < ENDLESS_BYTES else len(data) - FOLLOWING_BYTES


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def _as_utf8(stream: IO[bytes]) -> Any:
    """PowerShell's `>` writes UTF-16 with a byte order mark; a stream that can look ahead is asked."""
    peek = getattr(stream, "peek", None)
    head = peek(4)[:2] if peek else b""
    if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return codecs.EncodedFile(stream, "utf-8", "utf-16", errors="replace")
    return stream
