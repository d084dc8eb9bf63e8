"""Clocks: recordings of several processes in, what brings their times onto one clock out.

Files say what time of day it was; the clocks of two hosts may yet be hours apart. But a
collective (a kernel of NCCL or RCCL) ends at one moment in all of its ranks. So the difference
between two clocks is the one at which most of these ends coincide.

    rank 0    ends at    100    250    900
    rank 1    ends at           750   1400   1600        coincide if 500 is taken off
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.importers.recording import Recording
from xsp.level import Kind
from xsp.provider import ATTRIBUTE

Ints = NDArray[np.int64]

_NAMES = "(?i)nccl|rccl"
_COLLECTIVE, _GROUP = f"{ATTRIBUTE}collective", f"{ATTRIBUTE}collective_group"
_APART_NS = 200_000  # ends of one collective are hardly further apart
_CLOSE_NS = 20_000  # most are much nearer
_FEWEST = 3  # coincidences that tell more than chance
_MOST = 500  # ends of a kind of collective that are compared with as many
_NEAR_NS = 1_000_000_000  # hosts whose clocks are kept by the network are nearer than that


@dataclass(frozen=True, slots=True)
class Clock:
    """How a recording's times are brought onto the clock of the first recording.

    Attributes:
        add_ns: What is added to the recording's times.
        source: How that is known: `first`, `same file`, `collectives`, `time of day`; or
            `beginning` where it is not, and the recordings are shown beginning together.
        matched: How many collectives end together then.
        error_ns: By how much the ends of 95 % of these differ at most; None where not known.
        corrected_ns: By how much that differs from what the files say; None if they do not.
    """

    add_ns: int
    source: str
    matched: int = 0
    error_ns: int | None = None
    corrected_ns: int | None = None


def align(recordings: Sequence[Recording], files: Sequence[int]) -> list[Clock]:
    """Return the clock of each recording.

    Args:
        recordings: At least one.
        files: Number of the file that each recording is from; those of one file have one clock.
    """
    ends = [_ends(recording) for recording in recordings]
    clocks: dict[int, Clock] = {0: Clock(0, "first")}
    while len(clocks) < len(recordings):
        number, clock = next(_next(recordings, files, ends, clocks))
        clocks[number] = clock
    return [clocks[number] for number in range(len(recordings))]


def _next(
    recordings: Sequence[Recording],
    files: Sequence[int],
    ends: Sequence[dict[str, Ints]],
    clocks: dict[int, Clock],
) -> Iterator[tuple[int, Clock]]:
    """Yield clocks of recordings whose clock is not known yet, what is known best first."""
    left = [number for number in range(len(recordings)) if number not in clocks]
    for number in left:
        for other in (each for each in clocks if files[each] == files[number]):
            yield number, Clock(clocks[other].add_ns, "same file")
    told = {number: _by_day(recordings[number], recordings[0]) for number in left}
    for number in left:
        for other, clock in clocks.items():
            known = {name: times + clock.add_ns for name, times in ends[other].items()}
            if found := _coinciding(known, ends[number], told[number]):
                yield number, found
    for number in left:
        by_day = told[number]
        if by_day is not None:
            yield number, Clock(by_day, "time of day")
    for number in left:
        yield number, Clock(_began(recordings[0]) - _began(recordings[number]), "beginning")


def _by_day(recording: Recording, first: Recording) -> int | None:
    """Return what brings a recording onto the first one's clock, as far as the files tell."""
    if recording.unix_ns is None or first.unix_ns is None:
        return None
    return recording.unix_ns - first.unix_ns


def _began(recording: Recording) -> int:
    """Return when the first step of a recording, or else its first span, began."""
    starts = (recording.roots if recording.roots.height else recording.rows)["start_ns"]
    return int(starts.min() or 0)  # type: ignore[arg-type]


def _ends(recording: Recording) -> dict[str, Ints]:
    """Return when collectives ended, in order, for each name and group."""
    rows = recording.rows
    names = [name for name in (_COLLECTIVE, _GROUP) if name in rows.columns]
    is_one = pl.col("name").str.contains(_NAMES)
    if _COLLECTIVE in names:
        is_one |= pl.col(_COLLECTIVE).is_not_null()
    chosen = rows.filter((pl.col("kind") == Kind.KERNEL.value) & is_one).sort("end_ns")
    found: dict[str, list[int]] = {}
    for end, *key in chosen.select("end_ns", "name", *names).iter_rows():
        found.setdefault(repr(key), []).append(end)
    return {name: np.array(times, dtype=np.int64) for name, times in found.items()}


def _coinciding(known: dict[str, Ints], ends: dict[str, Ints], told: int | None) -> Clock | None:
    """Return the clock at which most collectives end when they are known to; None if few do."""
    both = [name for name in known if name in ends]
    if not both:
        return None
    apart = [(known[n][:_MOST, None] - ends[n][None, :_MOST]).ravel() for n in both]
    add = _most_frequent(np.sort(np.concatenate(apart)), told)
    if add is None:
        return None
    # All collectives, not only the first ones, say by how much exactly.
    near = [_nearest(known[name] - add, ends[name]) for name in both]
    rest = np.concatenate(near)
    rest = rest[np.abs(rest) <= _APART_NS]
    add += int(np.median(rest))
    error = int(np.quantile(np.abs(rest - np.median(rest)), 0.95))
    return Clock(add, "collectives", len(rest), error, None if told is None else add - told)


def _most_frequent(apart: Ints, told: int | None) -> int | None:
    """Return the difference around which most differences lie; None if that may be by chance.

    Args:
        apart: Differences, sorted.
        told: What the files say the difference is. Near to it fewer are believed as well.
    """
    count = _within(apart, _APART_NS)
    best = int(count.argmax())
    near = np.zeros(len(apart), np.bool_) if told is None else np.abs(apart - told) <= _NEAR_NS
    if near.any() and 2 * count[near].max() >= count[best]:
        best = int(np.flatnonzero(near)[count[near].argmax()])
    elsewhere = count[(np.abs(apart - apart[best]) > 2 * _APART_NS) & ~near]
    if count[best] < _FEWEST or (not near[best] and elsewhere.max(initial=0) >= count[best]):
        return None
    # Collectives may follow one another quickly: most ends of one and the same are much nearer.
    around = apart[np.abs(apart - apart[best]) <= _APART_NS]
    count = _within(around, _CLOSE_NS)
    best = int(count.argmax())
    return int(np.median(around[best : best + count[best]]))


def _within(values: Ints, reach: int) -> Ints:
    """Return how many of the sorted values lie from each value on, and no further than `reach`."""
    return np.searchsorted(values, values + reach, side="right") - np.arange(len(values))


def _nearest(known: Ints, ends: Ints) -> Ints:
    """Return for each end by how much the nearest known end is later; both are sorted."""
    at = np.clip(np.searchsorted(known, ends), 1, max(len(known) - 1, 1))
    after = known[np.minimum(at, len(known) - 1)] - ends
    before = known[at - 1] - ends
    return np.where(np.abs(before) < np.abs(after), before, after)
