"""Reads the lines, kinds of event and events of a plane.

An event has a number instead of a name, and so has each of its stats (attributes); the plane says
what the numbers mean. The numbers of fields are those of xplane.proto in openxla/xla
(`tsl/profiler/protobuf`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.protobuf import BYTES, NUMBER, Ints, signed, walk
from xsp.xplane.event import Events, known_events, read_events
from xsp.xplane.kind import Kind, read_kinds
from xsp.xplane.stat import Stats, text

_NAME, _LINES, _KINDS, _STAT_NAMES, _STATS = 2, 3, 4, 5, 6  # fields of XPlane
_LINE_ID, _LINE_NAME, _ORIGIN, _EVENTS = 1, 2, 3, 4  # fields of XLine
_NO_PLACES = np.zeros((0, 2), np.int64)
_LINE_SCHEMA = {
    "line": pl.Int64,
    "line_id": pl.Int64,
    "line_name": pl.String,
    "timestamp_ns": pl.Int64,
    "events": pl.Int64,
}


@dataclass(frozen=True, slots=True)
class Metadata:
    """A kind of event, as a plane describes it; JAX keeps the HLO of a program in one's stats.

    Attributes:
        number: Number of the kind, which its events have.
        name: Its name.
        display: A shorter name; empty where there is none.
        stats: What is said of all events of the kind, by name.
    """

    number: int
    name: str
    display: str
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line: its number, name and origin in ns, and where its events begin and end.

    Of a damaged line these are the events before the damage.
    """

    number: int
    name: str
    origin_ns: int
    places: Ints
    damaged: bool


@dataclass(frozen=True)
class Plane:
    """Lines and events of one host or device, or facts of the recording.

    Attributes:
        data: The bytes of the file, padded.
        places: Where the values of each field of the plane begin and end.
    """

    data: npt.NDArray[np.uint8] = field(repr=False)
    places: Mapping[int, list[tuple[int, int]]] = field(repr=False)

    @cached_property
    def name(self) -> str:
        """Name of the plane: `"/host:CPU"`, `"/device:GPU:0"`."""
        begin, end = self.places.get(_NAME, [(0, 0)])[-1]
        return text(self.data.data[begin:end])

    @cached_property
    def stats(self) -> dict[str, Any]:
        """Stats of the plane by name."""
        return self._meanings.values(self.places.get(_STATS, ()))

    @cached_property
    def lines(self) -> pl.DataFrame:
        """Lines of the plane (threads, streams), one row each.

        `line` is the position, which is unique, `timestamp_ns` is where the line's times begin,
        and `events` is how many it has.
        """
        known = [
            (at, line.number, line.name, line.origin_ns, len(line.places))
            for at, line in enumerate(self._lines)
        ]
        return pl.DataFrame(known, _LINE_SCHEMA, orient="row")

    @cached_property
    def metadata(self) -> tuple[Metadata, ...]:
        """The kinds of its events."""
        return tuple(
            Metadata(number, kind.name, kind.display, self._meanings.values(kind.stats))
            for number, kind in self._kinds.items()
        )

    def events(
        self, stats: Mapping[str, Any] | None = None, *, lines: Iterable[int] | None = None
    ) -> Events:
        """Return the events of some lines.

        Args:
            stats: The stats that become columns: for each name its type, which is Int64, Float64,
                String or Binary of Polars.
            lines: Positions of the lines; None: all.
        """
        chosen = range(len(self._lines)) if lines is None else lines
        read = [(at, self._lines[at]) for at in chosen]
        places = [line.places for _, line in read]
        line = np.repeat([at for at, _ in read], [len(each) for each in places])
        frame = read_events(
            self.data, np.concatenate([_NO_PLACES, *places]), self._meanings, stats or {}
        ).insert_column(0, pl.Series("line", line, dtype=pl.Int64))
        found = known_events(frame, self.lines, self._kinds)
        return replace(found, damaged=found.damaged + sum(each.damaged for _, each in read))

    @cached_property
    def _lines(self) -> list[_Line]:
        view = self.data.data
        return [_line(view, *place) for place in self.places.get(_LINES, ())]

    @cached_property
    def _kinds(self) -> dict[int, Kind]:
        return self._described(_KINDS)

    @cached_property
    def _meanings(self) -> Stats:
        names = {number: kind.name for number, kind in self._described(_STAT_NAMES).items()}
        return Stats(self.data.data, names)

    def _described(self, number: int) -> dict[int, Kind]:
        places = np.array(self.places.get(number, ()), np.int64).reshape(-1, 2)
        return read_kinds(self.data, places)


def _line(data: memoryview, begin: int, end: int) -> _Line:
    """Return the line at a place, as far as it is whole."""
    name, facts, events, damaged = "", {_LINE_ID: 0, _ORIGIN: 0}, array("q"), False
    try:
        for number, wire, value, size in walk(data, begin, end):
            if number == _EVENTS and wire == BYTES:
                events.extend((value, value + size))
            elif number == _LINE_NAME and wire == BYTES:
                name = text(data[value : value + size])
            elif number in facts and wire == NUMBER:
                facts[number] = signed(value)
    except ValueError:
        damaged = True
    places = np.array(events, np.int64).reshape(-1, 2)
    return _Line(facts[_LINE_ID], name, facts[_ORIGIN], places, damaged)
