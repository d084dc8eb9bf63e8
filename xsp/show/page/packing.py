"""Packs a header and arrays of numbers as one text, which the page's script unpacks.

The text is base64 of a zlib stream. Inside lie the length of the header in 4 bytes, the header as
JSON, and the arrays one after the other; each begins at a multiple of 8 bytes, where a script may
look at the numbers without copying them. All numbers are little-endian. The header's `arrays`
lists name, type and length of each.

A name from a model inside such a text can be no markup.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

_ALIGNED = 8
# What the script calls the types (`new Float64Array(…)`).
_TYPES = {
    "float64": "Float64Array",
    "float32": "Float32Array",
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "uint16": "Uint16Array",
    "uint8": "Uint8Array",
}


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a header and arrays as one text.

    Args:
        header: Values that JSON can hold.
        arrays: One-dimensional arrays of a type in `_TYPES`, by name.

    >>> import numpy as np
    >>> text = pack({"name": "x"}, {"parent": np.array([-1, 0], dtype=np.int32)})
    >>> zlib.decompress(base64.b64decode(text))[4:28]
    b'{"name": "x", "arrays": '
    """
    listed = [[name, _TYPES[array.dtype.name], len(array)] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": listed}, ensure_ascii=False, allow_nan=False).encode()
    parts = [_padded(len(text).to_bytes(4, "little") + text)]
    parts += [
        _padded(array.astype(array.dtype.newbyteorder("<")).tobytes()) for array in arrays.values()
    ]
    return base64.b64encode(zlib.compress(b"".join(parts), 6)).decode("ascii")


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % _ALIGNED)
