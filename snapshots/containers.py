"""From a file to the plain Python object in it: pickle, JSON copy or memory_viz page, as it is or compressed."""

import base64
import binascii
import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from ..errors import UnreadableInputError
from . import unpickler

# pickle protocol 2 and later starts with PROTO; 0 and 1 with the opcode of a list or a dict
PICKLE_STARTS = (0x80, *b"(]}")
EMBEDDED = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=\s]+)"')
SUFFIXES = (".pickle", ".pkl", ".json", ".html")
# A snapshot shrinks 5 to 40 times; a bomb about 1,000 times.
MAX_EXPANSION = 200
EXPANSION_FREE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
MAX_XZ_DICTIONARY = 256 << 20  # four times what `xz -9` writes


def read_object(file: IO[bytes], *, fenced: bool) -> tuple[object, int]:
    """-> (what the file holds, bytes of it after decompression). Executes nothing.

    With `fenced` the process is one whose memory and time are bounded (`sandbox`), so a pickle is loaded as it is;
    otherwise its opcodes are walked first. Raises UnreadableInputError with a reason that completes the sentence
    "<path> is not a snapshot: ...".
    """
    head = file.read(4096)
    file.seek(0)
    if not head:
        raise UnreadableInputError("the file is empty (did the job stop before it could write?)")
    kind = compression(head)
    if kind is not None:
        file = io.BytesIO(_unpacked(file, kind))
        head = file.read(4096)
        file.seek(0)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"<":
        page = _embedded_pickle(file.read())
        return _pickle(io.BytesIO(page), fenced=fenced)
    if text[:1] in (b"{", b"["):
        content = file.read()
        return _json(content), len(content)
    if head[:1] and head[0] in PICKLE_STARTS:
        return _pickle(file, fenced=fenced)
    raise UnreadableInputError(
        "it is neither a pickle, JSON nor a memory_viz page, as it is or compressed by gzip, bzip2, xz or zip; "
        "write one with torch.cuda.memory._dump_snapshot(path) or `oomdoc run`"
    )


def _pickle(file: IO[bytes], *, fenced: bool) -> tuple[object, int]:
    if not fenced:
        data = file.read()
        return unpickler.load_scanned(data), len(data)
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return unpickler.load(file), size


def compression(head: bytes) -> str | None:
    """What the first bytes of a file say that it is compressed by; None for a plain one."""
    return next((kind for kind, (magic, _) in _UNPACKERS.items() if head.startswith(magic)), None)


def _unpacked(file: IO[bytes], kind: str) -> bytes:
    packed = file.seek(0, io.SEEK_END)
    file.seek(0)
    limit = EXPANSION_FREE_BYTES + MAX_EXPANSION * packed
    out = io.BytesIO()
    try:
        for chunk in _UNPACKERS[kind][1](file):
            out.write(chunk)
            if out.tell() > limit:
                raise UnreadableInputError(f"the {kind} expands more than {MAX_EXPANSION} times, as no snapshot does")
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise UnreadableInputError(f"the {kind} is damaged or cut off ({error})") from None
    if not out.tell():
        raise UnreadableInputError(f"the {kind} is empty")
    return out.getvalue()


def _gzip(file: IO[bytes]) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as stream:
        yield from iter(lambda: stream.read(CHUNK_BYTES), b"")


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


def _stream(file: IO[bytes], new: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """One stream of bzip2 or xz, which their file classes would read without a bound on memory."""
    stream = new()
    while not stream.eof:
        data = file.read(CHUNK_BYTES) if stream.needs_input else b""
        if stream.needs_input and not data:
            raise EOFError("it ends before its end mark")
        try:
            yield stream.decompress(data, CHUNK_BYTES)
        except OSError as error:
            raise EOFError(str(error)) from None


def _zip(file: IO[bytes]) -> Iterator[bytes]:
    """The only snapshot-like member: of what a person zipped, or the pickle of `torch.save(snapshot, path)`."""
    with zipfile.ZipFile(file) as archive:
        members = [each for each in archive.infolist() if each.filename.endswith(SUFFIXES)]
        if len(members) != 1:
            raise UnreadableInputError(
                f"the zip holds {len(members) or 'no'} files that end in {', '.join(SUFFIXES)}: unpack it and name one"
            )
        try:
            with archive.open(members[0]) as stream:
                yield from iter(lambda: stream.read(CHUNK_BYTES), b"")
        except (RuntimeError, NotImplementedError) as error:
            raise UnreadableInputError(f"the zip cannot be unpacked here ({error})") from None


_UNPACKERS: dict[str, tuple[bytes, Callable[[IO[bytes]], Iterator[bytes]]]] = {
    "gzip": (b"\x1f\x8b", _gzip),
    "bzip2": (b"BZh", lambda file: _stream(file, bz2.BZ2Decompressor)),
    "xz": (b"\xfd7zXZ\x00", lambda file: _stream(file, lambda: lzma.LZMADecompressor(memlimit=MAX_XZ_DICTIONARY))),
    "zip": (b"PK\x03\x04", _zip),
}


def _embedded_pickle(page: bytes) -> bytes:
    found = EMBEDDED.search(page)
    if not found:
        raise UnreadableInputError("the HTML page has no snapshot in it (memory_viz pages keep it as base64)")
    try:
        inside = base64.b64decode(found.group(1))
    except binascii.Error:
        inside = b""
    if not inside or inside[0] not in PICKLE_STARTS:
        raise UnreadableInputError("the base64 text in the HTML page is damaged: it holds no pickle")
    return inside


def _json(content: bytes) -> object:
    try:
        with unpickler.collector_paused():
            return json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise UnreadableInputError("the JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise UnreadableInputError("the JSON is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise UnreadableInputError(f"the JSON is damaged ({error})") from None
    except ValueError:
        raise UnreadableInputError("the JSON has a number of thousands of digits") from None
