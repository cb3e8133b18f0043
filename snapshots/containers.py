"""From a file to the plain Python object in it: pickle, gzip, JSON copy, or a memory_viz page."""

import base64
import binascii
import gzip
import io
import json
import re
import zlib
from typing import IO

from ..errors import UnreadableInputError
from . import unpickler

GZIP_MAGIC = b"\x1f\x8b"
# pickle protocol 2 and later starts with PROTO; 0 and 1 with the opcode of a list or a dict
PICKLE_STARTS = (0x80, *b"(]}")
EMBEDDED = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=\s]+)"')
# A snapshot shrinks 5 to 40 times; a bomb about 1,000 times.
MAX_EXPANSION = 200
EXPANSION_FREE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20


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
    if head[:2] == GZIP_MAGIC:
        file = io.BytesIO(_gunzip(file))
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
        "it is neither a pickle, JSON, gzip nor a memory_viz page; "
        "write one with torch.cuda.memory._dump_snapshot(path) or `oomdoc run`"
    )


def _pickle(file: IO[bytes], *, fenced: bool) -> tuple[object, int]:
    if not fenced:
        data = file.read()
        return unpickler.load_scanned(data), len(data)
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return unpickler.load(file), size


def _gunzip(file: IO[bytes]) -> bytes:
    packed = file.seek(0, io.SEEK_END)
    file.seek(0)
    limit = EXPANSION_FREE_BYTES + MAX_EXPANSION * packed
    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                out.write(chunk)
                if out.tell() > limit:
                    raise UnreadableInputError(f"the gzip expands more than {MAX_EXPANSION} times, as no snapshot does")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableInputError(f"the gzip is damaged or cut off ({error})") from None
    if not out.tell():
        raise UnreadableInputError("the gzip is empty")
    return out.getvalue()


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
