"""Walk a pickle's opcodes before it is loaded, so that a hostile one costs neither memory nor time.

Refusing globals keeps a pickle from running code, but not from asking the C unpickler for a memo of 4 billion entries
(one LONG_BINPUT, 16 bytes each, zeroed), or for the hash of a tuple that doubles at every level. A snapshot needs
neither: its memo numbers count up and its only tuples are pool ids, pairs of integers.

The walk is one regular expression over runs of opcodes, about 10 ns a byte.
"""

import re
import struct
from dataclasses import dataclass
from functools import lru_cache

NAMED_IMPORTS = b"ciP"  # their names follow in the text; they end the load whatever follows
_INT = rb"K.|M..|J.{4}|I-?[0-9]{1,20}\n|L-?[0-9]{1,20}L?\n|" + b"|".join(
    b"\x8a" + re.escape(bytes([n])) + b".{%d}" % n for n in range(17)
)
_INT = b"(?:" + _INT + b")"
# exactly as many integers as the tuple opcode takes, so that no tuple can hold another
_INT_OR_TUPLE = _INT + rb"(?:\x85|" + _INT + rb"(?:\x86|" + _INT + rb"\x87))?"
IMPORTS = b"ciR\x81\x92\x93b\x82\x83\x84oPQ"  # GLOBAL, INST, REDUCE, NEWOBJ, STACK_GLOBAL, BUILD, EXT, OBJ, PERSID


# opcode -> its length prefix, for the opcodes that carry text or bytes of a counted length
COUNTED = {
    0x8C: struct.Struct("<B"),
    ord("X"): struct.Struct("<I"),
    0x8D: struct.Struct("<Q"),
    ord("U"): struct.Struct("<B"),
    ord("T"): struct.Struct("<I"),
    ord("C"): struct.Struct("<B"),
    ord("B"): struct.Struct("<I"),
    0x8E: struct.Struct("<Q"),
    0x96: struct.Struct("<Q"),
}
LINES = b"VS"  # UNICODE, STRING: up to the end of the line
STOP = ord(".")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The first opcode that a snapshot never has; `opcode` -1 = the data ends before STOP."""

    position: int
    opcode: int

    @property
    def imports(self) -> bool:
        return self.opcode >= 0 and self.opcode in IMPORTS


def first_refused(data: bytes) -> Refusal | None:
    """None when every opcode up to STOP is one that a snapshot may have, within the bounds of `data`."""
    match = _pattern((len(data).bit_length() + 7) // 8, len(str(len(data)))).match
    at = 2 if data[:1] == b"\x80" and data[1:2] <= b"\x05" else 0
    while at < len(data):
        if run := match(data, at):
            at = run.end()
            continue
        opcode = data[at]
        if opcode == STOP:
            return None
        end = _end_of_text(data, at, opcode)
        if end is None:
            return Refusal(at, opcode)
        at = end
    return Refusal(len(data), -1)


def _end_of_text(data: bytes, at: int, opcode: int) -> int | None:
    """Where the text or bytes that `opcode` carries end; None where it is another opcode."""
    if opcode in LINES:
        newline = data.find(b"\n", at)
        return len(data) if newline < 0 else newline + 1
    counted = COUNTED.get(opcode)
    if counted is None:
        return None
    start = at + 1 + counted.size
    if start > len(data):
        return len(data)
    return min(start + int(counted.unpack_from(data, at + 1)[0]), len(data))


@lru_cache
def _pattern(size_bytes: int, size_digits: int) -> re.Pattern[bytes]:
    """Runs of harmless opcodes; a memo number may not have more bytes or digits than the size of the data."""
    used = min(size_bytes, 4)
    long_put = b"r.{%d}" % used + b"\x00" * (4 - used)
    put = b"p[0-9]{1,%d}\n" % size_digits
    opcodes = (
        b"(?:h.){8}",
        b"h.",
        b"\x94",
        b"j.{4}",
        _INT_OR_TUPLE,
        rb"[\x88\x89N)\]}ausled]",
        rb"\(" + _INT + b"{1,8}t",
        rb"\(",
        b"q.",
        long_put,
        rb"\x95.{8}",
        b"G.{8}",
        b"g[0-9]{1,12}\n",
        put,
        rb"F[-+.0-9eEinfa]{1,32}\n",
    )
    return re.compile(b"(?:" + b"|".join(opcodes) + b"){1,4000}", re.DOTALL)
