"""Turns the bytes of rings into arrays of moments: what happened on which thread, and when.

A record begins with a word of type, flags and size (`struct perf_event_header`). What follows
depends on the type, and was asked for in `watch`:

    switch    time, processor, identifier
    sample    identifier, time, and for system calls: size, header of the tracepoint (8 bytes),
              number of the call, arguments or result
    end       process, its parent, thread, its parent (4 bytes each), time, ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xsp_levels.system.linux.record import PERIODS, Integers, SystemRecords, What

_EXIT, _SAMPLE, _SWITCH = 4, 9, 14  # PERF_RECORD_*
_OUT, _PREEMPT = (
    1 << 13,
    1 << 14,
)  # PERF_RECORD_MISC_SWITCH_OUT, PERF_RECORD_MISC_SWITCH_OUT_PREEMPT
_INTERRUPT = 0x18  # TRACE_FLAG_HARDIRQ | TRACE_FLAG_SOFTIRQ


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of all threads, thread by thread, in the order in which they happened there.

    Attributes:
        thread: Index of the thread in `SystemRecords.threads`.
        time_ns: Time since the visit began, from 0 to the visit's length, never going back.
        what: What happened (`What`).
        value: Processor of a switch, number of a system call.
        result: Result of a system call that ended.
    """

    thread: Integers
    time_ns: Integers
    what: Integers
    value: Integers
    result: Integers

    def of(self, *kinds: What) -> Moments:
        """Return the moments of some kinds."""
        kept = np.isin(self.what, kinds)
        return Moments(
            self.thread[kept],
            self.time_ns[kept],
            self.what[kept],
            self.value[kept],
            self.result[kept],
        )


@dataclass(frozen=True, slots=True)
class Wakings:
    """Wake-ups of watched threads, by thread and time.

    Attributes:
        thread: Index of the thread that was woken.
        time_ns: Time since the visit began.
        waker: The kernel's number of the thread that woke it; 0: an interrupt did.
    """

    thread: Integers
    time_ns: Integers
    waker: Integers


def read_moments(records: SystemRecords) -> Moments:
    """Return the moments of a visit. Pure."""
    starts: list[int] = []
    threads: list[Integers] = []
    at = 0
    for index, each in enumerate(records.threads):
        found = record_starts(records.rings, at, at + each.size)
        starts += found
        threads.append(np.full(len(found), index))
        at += each.size
    first = np.array(starts, np.int64)
    # Words beyond the end stand for what short records do not have.
    words = np.concatenate([records.rings[:at], np.zeros(8, np.int64)])
    halves = words.view(np.int32)
    thread = np.concatenate([*threads, np.empty(0, np.int64)]).astype(np.int64)

    header = words[first].view(np.uint64)
    type_, flags = header & np.uint64(0xFFFFFFFF), (header >> np.uint64(32)).astype(np.int64)
    sample, switch = type_ == _SAMPLE, type_ == _SWITCH
    end = (type_ == _EXIT) & (halves[2 * first + 4] == _numbers(records)[thread])

    what = np.full(len(first), -1)
    what[switch] = np.where(
        flags & _OUT, np.where(flags & _PREEMPT, What.PREEMPTED, What.OUT), What.IN
    )[switch]
    what[sample] = _said_by(words[first[sample] + 1], records)
    what[end] = What.ENDED
    time = words[first + np.where(switch, 1, np.where(sample, 2, 3))]
    value = np.where(switch, words[first + 2] & 0xFFFFFFFF, halves[2 * first + 9])
    low, high = halves[2 * first + 11].view(np.uint32), halves[2 * first + 12]
    result = low.astype(np.int64) | (high.astype(np.int64) << 32)
    # Switches and calls outside of the visit say how it begins and ends; faults there are none.
    inside = (time >= records.begin_ns) & (time <= records.end_ns)
    known = (what >= 0) & (inside | ~np.isin(what, (What.FAULT, What.MAJOR_FAULT, *PERIODS)))
    thread = thread[known]
    return Moments(
        thread,
        _in_order(thread, time[known], records),
        what[known],
        value[known].astype(np.int64),
        result[known],
    )


def read_wakings(records: SystemRecords) -> Wakings:
    """Return the wake-ups of watched threads in a visit. Pure."""
    time, waker, woken = _waking_fields(records.wakings)
    time = time - records.begin_ns
    numbers = _numbers(records)
    order = np.argsort(numbers)
    place = np.minimum(np.searchsorted(numbers[order], woken), max(len(order) - 1, 0))
    thread = order[place] if len(order) else np.empty(0, np.int64)
    kept = (numbers[thread] == woken) & (time >= 0) & (time <= records.end_ns - records.begin_ns)
    by_time = np.lexsort((time[kept], thread[kept]))
    return Wakings(thread[kept][by_time], time[kept][by_time], waker[kept][by_time])


def thread_ends(records: SystemRecords, moments: Moments) -> Integers:
    """Return until when each thread was watched, since the visit began. Pure.

    That is until it ended or the visit did, or, where records were lost, until the last one.
    """
    ends = np.full(len(records.threads), records.end_ns - records.begin_ns)
    ended = moments.of(What.ENDED)
    ends[ended.thread] = ended.time_ns
    lossy = np.array([each.lost > 0 for each in records.threads], bool)
    if lossy.any():
        last = np.zeros(len(ends), np.int64)
        np.maximum.at(last, moments.thread, moments.time_ns)
        ends = np.where(lossy, np.minimum(last, ends), ends)
    return ends


def wakers(wakings: Integers) -> list[int]:
    """Return the kernel's numbers of the threads that woke others. Pure.

    Args:
        wakings: What the kernel wrote of wake-ups.
    """
    return [each for each in np.unique(_waking_fields(wakings)[1]).tolist() if each > 0]


def recorded_wakings(wakings: Integers) -> int:
    """Count the wake-ups that can be read: a kernel with another layout records none. Pure."""
    return len(_waking_fields(wakings)[0])


def samples(ring: Integers) -> int:
    """Return how many samples a ring holds. Pure."""
    starts = np.array(record_starts(ring, 0, len(ring)), np.int64)
    return int(np.count_nonzero(ring[starts] & 0xFFFFFFFF == _SAMPLE))


def _waking_fields(wakings: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the time of each wake-up, the thread that woke (0: an interrupt), the one woken."""
    starts = np.array(record_starts(wakings, 0, len(wakings)), np.int64)
    # Samples of this event have seven words.
    starts = starts[wakings[starts] == _SAMPLE | 1 << 32 | 7 * 8 << 48]
    halves = wakings.view(np.int32)
    interrupts = (halves[2 * starts + 5] >> 16) & _INTERRUPT
    waker = np.where(interrupts, 0, halves[2 * starts + 6]).astype(np.int64)
    return wakings[starts + 1], waker, halves[2 * starts + 11].astype(np.int64)


def record_starts(words: Integers, begin: int, end: int) -> list[int]:
    """Return where records begin, up to one that is cut off.

    Args:
        words: Records one after the other.
        begin: First word of the first record.
        end: Word after the last record.
    """
    sizes = words.data.cast("B").cast("H")
    starts: list[int] = []
    at = begin
    while at < end:
        size = sizes[4 * at + 3] >> 3
        if size == 0 or at + size > end:
            break
        starts.append(at)
        at += size
    return starts


def _numbers(records: SystemRecords) -> Integers:
    return np.array([thread.number for thread in records.threads], np.int64)


def _said_by(identifiers: Integers, records: SystemRecords) -> Integers:
    """Translate identifiers of events into kinds of moment (`What`); -1: unknown."""
    known = np.array([*sorted(records.events), np.iinfo(np.int64).max], np.int64)
    said = np.array([*(records.events[each] for each in known[:-1].tolist()), -1], np.int64)
    place = np.searchsorted(known[:-1], identifiers)
    return np.where(known[place] == identifiers, said[place], -1)


def _in_order(thread: Integers, time_ns: Integers, records: SystemRecords) -> Integers:
    """Return times since the begin, within the visit, and none before the one in front of it.

    A ring's order is the truth; its times come from several processors.
    """
    length = records.end_ns - records.begin_ns
    apart = length + 1
    within = np.clip(time_ns - records.begin_ns, 0, length)
    return np.maximum.accumulate(within + thread * apart) - thread * apart
