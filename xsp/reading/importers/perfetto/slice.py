"""Pairs begins with ends of slices, and finds the process and thread of their tracks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from xsp.protobuf import BYTES, EIGHT, NUMBER, Fields, Ints, signed
from xsp.reading.importers.perfetto.packet import DESCRIPTOR, EVENT, Packets, column, in_order

_BEGIN, _END, _INSTANT, _COUNTER, _STATE = 1, 2, 3, 4, 5
# Types of older events by their phase, a character; 6 stands for a slice with its duration.
_PHASES = {ord("B"): _BEGIN, ord("E"): _END, ord("X"): 6, ord("I"): _INSTANT, ord("i"): _INSTANT}
_CATEGORIES, _NAMES = 1, 2  # fields of interned data
_ANNOTATIONS, _LEGACY, _CORRELATION = 4, 6, 3000
_TRACKS = "descriptions of tracks"
_FLOWS = ((36, NUMBER), (47, EIGHT), (42, NUMBER), (48, EIGHT))


@dataclass
class Track:
    """A track, as the file describes it.

    Attributes:
        parent: Number of the track around it, 0 for none.
        name: Name of the track, or of its thread or process.
        pid: Number of its process, None if it is not told.
        tid: Number of its thread, None if it is none.
    """

    parent: int = 0
    name: str = ""
    pid: int | None = None
    tid: int | None = None


@dataclass
class Slices:
    """The slices and instants of a file.

    Attributes:
        packets: The packets of the file.
        unended: How many slices have no end.
        open_since: How many ends have no begin.
    """

    packets: Packets
    unended: int = 0
    open_since: int = 0

    def __post_init__(self) -> None:
        messages = in_order(self.packets.fields.of(EVENT, BYTES))
        self.packet = messages.message
        self.fields = self.packets.scanned(messages.numbered(), "events")
        self.count = len(self.packet)

    @cached_property
    def tracks(self) -> dict[int, Track]:
        """The tracks, by their numbers."""
        found: dict[int, Track] = {}
        told = self.packets.fields.of(DESCRIPTOR, BYTES)
        for _, parts in self.packets.messages(told, _TRACKS):
            numbers = {key: signed(value) for key, value in parts if isinstance(value, int)}
            track = found.setdefault(numbers.get(1, 0), Track())
            track.parent = numbers.get(5, track.parent)
            for key, value in parts:
                if not isinstance(value, int):
                    self._describe(track, key, value)
        return found

    def _describe(self, track: Track, key: int, value: memoryview) -> None:
        if key in (2, 10, 13):
            track.name = bytes(value).decode("utf-8", "replace")
        elif key in (3, 4):
            told = dict(self.packets.message(value, _TRACKS))
            pid, tid, name = told.get(1), told.get(2), told.get(6 if key == 3 else 5)
            track.pid = signed(pid) if isinstance(pid, int) else track.pid
            if key == 4 and isinstance(tid, int):
                track.tid = signed(tid)
            if isinstance(name, memoryview) and not track.name:
                track.name = bytes(name).decode("utf-8", "replace")

    def place(self, number: int) -> tuple[int | None, int, str]:
        """Return process, thread and name of a track: those of the nearest track around with both.

        What is on a track of no thread has a thread of its own, which no other thread's number is.
        """
        seen: set[int] = set()
        name, at, thread, process = "", number, None, None
        while at in self.tracks and at not in seen:
            seen.add(at)
            track = self.tracks[at]
            name = name or track.name
            if thread is None:
                thread = track.tid
            if process is None:
                process = track.pid
            at = track.parent
        own = -1 - (number & (1 << 62) - 1)
        return process, own if thread is None else thread, name

    @cached_property
    def track(self) -> Ints:
        """Number of the track of each event."""
        told = column(self.fields, 11, self.count)
        usual = self.packets.defaults[1]
        if usual:
            lookup = np.zeros(int(self.packets.generation.max()) + 1, np.int64)
            lookup[list(usual)] = list(usual.values())
            told = np.where(told == 0, lookup[self.packets.generation[self.packet]], told)
        return told

    @cached_property
    def type(self) -> Ints:
        """Type of each event; that of older events comes from their phase."""
        told = column(self.fields, 9, self.count)
        if len(self._legacy[0].value):
            phase = column(self._legacy[1], 2, len(self._legacy[0].value))
            kinds = np.array([_PHASES.get(each, 0) for each in phase.tolist()], np.int64)
            rows = self._legacy[0].message
            told[rows] = np.where(told[rows] == 0, kinds, told[rows])
        return told

    @cached_property
    def _legacy(self) -> tuple[Fields, Fields]:
        messages = in_order(self.fields.of(_LEGACY, BYTES))
        return messages, self.packets.scanned(messages.numbered(), "events")

    @cached_property
    def time_ns(self) -> Ints:
        """Time of each event."""
        own = column(self.fields, 16, self.count)
        return np.where(own != 0, own * 1000, self.packets.times[self.packet])

    @cached_property
    def name(self) -> pl.Series:
        """Name of each event; null where the file does not have it."""
        inline = pl.Series(self.packets.texts(self.fields, 23, self.count), dtype=pl.String)
        iids, generations = (
            column(self.fields, 10, self.count),
            self.packets.generation[self.packet],
        )
        interned, missing = self.packets.named(_NAMES, generations, iids)
        if missing:
            self.packets.left["names that the file does not hold"] += missing
        return interned if inline.null_count() == len(inline) else inline.fill_null(interned)

    @cached_property
    def category(self) -> pl.Series:
        """First category of each event, null for none."""
        inline = pl.Series(self.packets.texts(self.fields, 22, self.count), dtype=pl.String)
        iids, generations = column(self.fields, 3, self.count), self.packets.generation[self.packet]
        interned, missing = self.packets.named(_CATEGORIES, generations, iids)
        if missing:
            self.packets.left["categories that the file does not hold"] += missing
        return interned if inline.null_count() == len(inline) else inline.fill_null(interned)

    @cached_property
    def paired(self) -> tuple[Ints, Ints, Ints]:
        """The events that begin and end each slice (-1: none), and its end in ns."""
        begins, ends = (np.flatnonzero(self.type == kind) for kind in (_BEGIN, _END))
        kept = np.concatenate([begins, ends])
        matched = self._written_in_pairs(np.sort(kept))
        rest = np.setdiff1d(kept, matched.ravel(), assume_unique=True)
        pairs = np.concatenate([matched, self._nested(rest)])
        durations = self._whole
        last = int(self.time_ns.max(initial=0))
        self.unended = int((pairs[:, 1] < 0).sum())
        end = np.where(pairs[:, 1] >= 0, self.time_ns[pairs[:, 1]], last)
        begin = np.concatenate([pairs[:, 0], durations[0]])
        closed = np.concatenate([pairs[:, 1], np.full(len(durations[0]), -1)])
        order = np.argsort(begin, kind="stable")
        return begin[order], closed[order], np.concatenate([end, durations[1]])[order]

    @property
    def _whole(self) -> tuple[Ints, Ints]:
        """Older slices that tell their duration: the events, and the ends in ns."""
        rows = np.flatnonzero(self.type == 6)
        if not len(rows):
            return rows, rows
        lasted = np.zeros(self.count, np.int64)
        lasted[self._legacy[0].message] = column(self._legacy[1], 3, len(self._legacy[0].value))
        return rows, self.time_ns[rows] + lasted[rows] * 1000

    def _written_in_pairs(self, events: Ints) -> Ints:
        """Return pairs in runs of begins with as many ends, of the same tracks, behind.

        A writer that knows the ends writes `begin, end`, or all begins and then all ends. Where
        the times of a run do not rise, it is no record of what happened one after the other, in
        which the last begin ends first.
        """
        if not len(events):
            return np.zeros((0, 2), np.int64)
        is_begin = self.type[events] == _BEGIN
        changes = np.flatnonzero(np.diff(is_begin.astype(np.int8)) != 0) + 1
        bounds = np.concatenate([[0], changes, [len(events)]])
        first = 0 if is_begin[0] else 1
        starts, mids = bounds[first:-2:2], bounds[first + 1 : -1 : 2]
        ends = bounds[first + 2 :: 2]
        starts, mids = starts[: len(ends)], mids[: len(ends)]
        alike = mids - starts == ends - mids
        single = alike & (mids - starts == 1)
        one = np.stack([events[starts[single]], events[mids[single]]], axis=1)
        one = one[self.track[one[:, 0]] == self.track[one[:, 1]]]
        found = [one]
        falls = np.concatenate([[0], np.cumsum(np.diff(self.time_ns[events]) < 0)])
        odd = alike & ~single & (falls[ends - 1] > falls[starts])
        for start, mid, end in zip(starts[odd], mids[odd], ends[odd], strict=True):
            pairs = np.stack([events[start:mid], events[mid:end]], axis=1)
            same = (self.track[pairs[:, 0]] == self.track[pairs[:, 1]]).all()
            if same and (np.diff(self.time_ns[pairs], axis=1) >= 0).all():
                found.append(pairs)
        return np.concatenate(found)

    def _nested(self, events: Ints) -> Ints:
        """Return pairs of the others, each end with the last open begin of its track."""
        order = events[np.lexsort((events, self.time_ns[events], self.track[events]))]
        pairs: list[tuple[int, int]] = []
        open_: list[int] = []
        before = None
        tracks, types = self.track[order].tolist(), self.type[order].tolist()
        for event, track, kind in zip(order.tolist(), tracks, types, strict=True):
            if track != before:
                pairs += [(each, -1) for each in open_]
                open_, before = [], track
            if kind == _BEGIN:
                open_.append(event)
            elif open_:
                pairs.append((open_.pop(), event))
            else:
                self.open_since += 1
        pairs += [(each, -1) for each in open_]
        return np.array(pairs, np.int64).reshape(-1, 2)

    @property
    def instants(self) -> Ints:
        """The events that are instants."""
        return np.flatnonzero(self.type == _INSTANT)

    def count_of(self, *kinds: int) -> int:
        """Count the events of these types."""
        return int(np.isin(self.type, kinds).sum())

    @cached_property
    def flow(self) -> Ints:
        """Number of the first flow through each event, 0 for none."""
        result = np.zeros(self.count, np.int64)
        for number, wire in _FLOWS:
            own = self.fields.of(number, wire)
            result[own.message] = own.value
        return result

    @cached_property
    def started(self) -> tuple[Ints, Ints]:
        """Events, and the number of a render stage that each started."""
        own = in_order(self.fields.of(_CORRELATION, BYTES))
        inner = self.packets.scanned(own.numbered(), "correlations").of(1, NUMBER)
        return own.message[inner.message], inner.value
