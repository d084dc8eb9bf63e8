"""Reads a plane's descriptions of the numbers of its events and stats.

The descriptions are two maps, of kinds of event and of names of stats. A map is on the wire a
list of entries of a key and a value; of several entries with one key the last holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xsp.protobuf import BYTES, NUMBER, Ints, scan
from xsp.xplane.stat import text

_KEY, _VALUE = 1, 2  # fields of an entry
_NAME, _DISPLAY, _STATS = 2, 4, 5  # fields of XEventMetadata; those of XStatMetadata are its own


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of event, or a stat, as a plane describes it.

    Attributes:
        name: Its name.
        display: A shorter name; empty where there is none.
        stats: Where the stats of all events of the kind begin and end.
    """

    name: str
    display: str
    stats: Sequence[tuple[int, int]]


def read_kinds(data: npt.NDArray[np.uint8], places: Ints) -> dict[int, Kind]:
    """Return descriptions by their numbers; entries that are damaged are left out.

    Args:
        data: The bytes of the file, padded.
        places: Where each entry begins and ends: an array of n times 2.
    """
    keys, begin, end, damaged = _entries(data, places)
    texts = {number: np.zeros((2, len(keys)), np.int64) for number in (_NAME, _DISPLAY)}
    stats: dict[int, list[tuple[int, int]]] = {}
    for fields in scan(data, begin, end, damaged):
        for number, spans in texts.items():
            of = fields.of(number, BYTES)
            spans[:, of.message] = of.value, of.value + of.size
        of = fields.of(_STATS, BYTES)
        for kind, at, end_ in zip(
            of.message.tolist(), of.value.tolist(), (of.value + of.size).tolist(), strict=True
        ):
            stats.setdefault(kind, []).append((at, end_))
    names, displays = (
        [text(data.data[begin:end]) for begin, end in spans.T.tolist()] for spans in texts.values()
    )
    return {
        key: Kind(names[at], displays[at], stats.get(at, ()))
        for at, key in enumerate(keys.tolist())
        if not damaged[at]
    }


def _entries(
    data: npt.NDArray[np.uint8], places: Ints
) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
    """Return keys, where the values begin and end, and which entries are damaged."""
    keys, begin, end = (np.zeros(len(places), np.int64) for _ in range(3))
    damaged = np.zeros(len(places), bool)
    for fields in scan(data, places[:, 0], places[:, 1], damaged):
        of = fields.of(_KEY, NUMBER)
        keys[of.message] = of.value
        of = fields.of(_VALUE, BYTES)
        begin[of.message], end[of.message] = of.value, of.value + of.size
    return keys, begin, end, damaged
