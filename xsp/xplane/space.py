"""Reads the planes of an XSpace from bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xsp.protobuf import BYTES, NUMBER, PADDING, varint, walk
from xsp.xplane.plane import Plane
from xsp.xplane.stat import text

_PLANES, _HOSTNAMES = 1, 4  # fields of XSpace
_NUMBER, _NAME, _LINES = 1, 2, 3  # fields of XPlane, which begins with number and name
_MOST_PLANES, _MOST_LINES = 10_000, 100_000  # more are damage, and would fill the memory


@dataclass(frozen=True, slots=True)
class Space:
    """The planes that TensorFlow's or JAX's profiler wrote.

    Attributes:
        planes: Its planes that are whole.
        hostnames: Names of the machines.
        cut: Whether the bytes end in the middle, or are no XSpace from some place on.
        damaged: How many planes are none.
    """

    planes: tuple[Plane, ...]
    hostnames: tuple[str, ...] = ()
    cut: bool = False
    damaged: int = 0

    def plane(self, name: str) -> Plane | None:
        """Return the first plane with a name; None if there is none."""
        return next((plane for plane in self.planes if plane.name == name), None)


def read_space(data: bytes) -> Space:
    """Read the planes of an XSpace, as far as the bytes are whole."""
    padded = np.frombuffer(data + bytes(PADDING), np.uint8)
    view = padded.data
    planes, hostnames, cut = [], [], False
    try:
        for number, wire, begin, size in walk(view, 0, len(data)):
            if (number, wire) == (_PLANES, BYTES):
                planes.append((begin, begin + size))
            if len(planes) > _MOST_PLANES:
                cut = True
                break
            if (number, wire) == (_HOSTNAMES, BYTES):
                hostnames.append(text(view[begin : begin + size]))
    except ValueError:
        cut = True
    read = [_plane(padded, *place) for place in planes]
    whole = tuple(plane for plane in read if plane is not None)
    return Space(whole, tuple(hostnames), cut, len(read) - len(whole))


def _plane(padded: npt.NDArray[np.uint8], begin: int, end: int) -> Plane | None:
    """Return the plane at a place; None if none is there."""
    places: dict[int, list[tuple[int, int]]] = {}
    try:
        for number, wire, value, size in walk(padded.data, begin, end):
            if wire == BYTES:
                places.setdefault(number, []).append((value, value + size))
    except ValueError:
        return None
    return Plane(padded, places) if len(places.get(_LINES, ())) <= _MOST_LINES else None


def plane_name(data: bytes) -> bytes | None:
    r"""Return the name of the first plane, if the bytes begin as an XSpace does; else None.

    Planes are the first field of an XSpace, and begin with their number and name; the bytes may
    end anywhere behind that name.

    >>> plane_name(b"\x0a\x0b\x12\x09/host:CPU"), plane_name(b"\x0a\x03abc")
    (b'/host:CPU', None)
    """
    view, end = memoryview(data), len(data)
    try:
        tag, at = varint(view, 0, end)
        if tag != _PLANES << 3 | BYTES:
            return None
        _, at = varint(view, at, end)
        tag, at = varint(view, at, end)
        if tag == _NUMBER << 3 | NUMBER:  # the plane's number, if it is not 0
            _, at = varint(view, at, end)
            tag, at = varint(view, at, end)
        if tag != _NAME << 3 | BYTES:
            return None
        length, at = varint(view, at, end)
    except ValueError:
        return None
    return bytes(view[at : at + length]) if at + length <= end else None
