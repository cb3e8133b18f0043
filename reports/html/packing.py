"""Columns and names for the page's script: one compressed text, in which no string can be taken for markup."""

import base64
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# numpy's kinds and the typed arrays of the browser; bytes and addresses go as doubles, exact below 2**53
_ARRAYS = {np.dtype("<i4"): "Int32Array", np.dtype("<f8"): "Float64Array", np.dtype("u1"): "Uint8Array"}
_ALIGNMENT = 8


class Packer:
    """Collects columns; `column` gives what stands in the JSON for one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def column(self, values: Any, dtype: str) -> dict[str, Any]:
        """`dtype` is one of i4, f8, u1."""
        array: NDArray[Any] = np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<"))
        raw = array.tobytes()
        reference = {"type": _ARRAYS[array.dtype], "at": self._length, "length": len(array)}
        padding = -len(raw) % _ALIGNMENT
        self._parts += [raw, b"\0" * padding]
        self._length += len(raw) + padding
        return reference

    def text(self, content: dict[str, Any]) -> str:
        """base64 of deflate of: length of the JSON (8 bytes, little-endian), the JSON, the columns; each aligned."""
        # escaped to ASCII: a lone surrogate, which a file name can hold, has no UTF-8
        head = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
        head += b" " * (-len(head) % _ALIGNMENT)
        whole = b"".join([len(head).to_bytes(8, "little"), head, *self._parts])
        return base64.b64encode(zlib.compress(whole, 9)).decode("ascii")
