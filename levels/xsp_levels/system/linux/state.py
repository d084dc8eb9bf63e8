"""Finds when threads were off their processors, and why, and charges that and faults to them.

A thread that leaves its processor has to, and could run on (preempted: runnable), or waits for
something (blocked) until another thread or an interrupt wakes it, and then for a processor:

    out, preempted ......... in          runnable
    out .... waking ........ in          blocked, then runnable
    out .................... in          blocked, where wake-ups are not watched

So on each thread times running, runnable and blocked add up to the time for which it was watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.provider import ACCOUNT_SCHEMA, Account, Accounts, Watched
from xsp_levels.native import thread
from xsp_levels.system.linux.call import MOVING, READING, WRITING, Calls, call_name
from xsp_levels.system.linux.moment import Moments, Wakings, thread_ends
from xsp_levels.system.linux.record import PERIODS, Integers, SystemRecords, What

_IN_FAULT = "page fault"
_INTERRUPT = "interrupt"
_ENDED = "a thread that has ended"


@dataclass(frozen=True, slots=True)
class Absences:
    """Stretches of time that threads spent off their processors, by thread and time.

    Attributes:
        thread: Index of the thread in `SystemRecords.threads`.
        start_ns: Begin, since the visit began.
        woken_ns: From when on the thread could have run; `end_ns`: not before, or unknown.
        end_ns: End.
        preempted: Whether the thread had to leave the processor.
        waker: The kernel's number of the thread that woke it; 0: an interrupt; -1: unknown.
        at: Place among all moments of the switch that it begins with, or that ends it if it began
            before the visit; -1: there is none.
        migrated: Whether the thread went on on another processor.
        onto: The processor on which it went on; -1: unknown.
    """

    thread: Integers
    start_ns: Integers
    woken_ns: Integers
    end_ns: Integers
    preempted: npt.NDArray[np.bool_]
    waker: Integers
    at: Integers
    migrated: npt.NDArray[np.bool_]
    onto: Integers


def read_absences(records: SystemRecords, moments: Moments, wakings: Wakings) -> Absences:
    """Return when each thread was off its processor in a visit. Pure."""
    everyone = np.arange(len(records.threads))
    ends = thread_ends(records, moments)
    switches = np.flatnonzero(np.isin(moments.what, (What.OUT, What.PREEMPTED, What.IN)))
    # One more moment for each thread, at the visit's begin. What the thread did then shows in its
    # first switch; where there is none, in its time on processors.
    first = np.append(switches, -1)[np.searchsorted(moments.thread[switches], everyone)]
    first[np.append(moments.thread, -1)[first] != everyone] = -1
    ran_ns = np.array([each.ran_ns for each in records.threads], np.int64)
    off = np.where(first >= 0, np.append(moments.what, -1)[first] == What.IN, ran_ns < ends / 2)
    owner = np.concatenate([everyone, moments.thread[switches]])
    order = np.argsort(owner, kind="stable")
    owner = owner[order]
    opening = order < len(everyone)
    at = np.concatenate([first, switches])[order]
    what = np.concatenate([np.where(off, What.OUT, What.IN), moments.what[switches]])[order]
    time = np.concatenate([0 * everyone, moments.time_ns[switches]])[order]
    time = np.minimum(time, ends[owner])

    last = owner != np.append(owner[1:], -1)
    end = np.where(last, ends[owner], np.roll(time, -1))
    processor = np.append(moments.value, 0)[at]
    migrated = ~opening & ~last & (np.roll(processor, -1) != processor)
    kept = (what != What.IN) & (end > time)
    preempted = what == What.PREEMPTED
    found = Absences(
        owner[kept],
        time[kept],
        np.where(preempted, time, end)[kept],
        end[kept],
        preempted[kept],
        np.full(np.count_nonzero(kept), -1),
        at[kept],
        migrated[kept],
        np.where(last, -1, np.roll(processor, -1))[kept],
    )
    # When the thread came to the processor that it leaves.
    since = np.where(opening, time, np.roll(time, 1))
    return _with_wakers(found, since[kept], wakings, records)


def _with_wakers(
    absences: Absences, since_ns: Integers, wakings: Wakings, records: SystemRecords
) -> Absences:
    """Split waits where the thread was woken.

    A thread that is woken while it is still leaving its processor is woken before it has left,
    but after `since_ns`, when it last came there.
    """
    if not len(wakings.thread):
        return absences
    apart = records.end_ns - records.begin_ns + 1
    moments = wakings.thread * apart + wakings.time_ns
    base = absences.thread * apart
    following = np.searchsorted(moments, base + absences.start_ns)
    earlier = np.maximum(following - 1, 0)
    following = np.minimum(following, len(moments) - 1)
    within = (moments[following] >= base + absences.start_ns) & (
        moments[following] <= base + absences.end_ns
    )
    early = (
        ~within
        & (moments[earlier] >= base + since_ns)
        & (moments[earlier] < base + absences.start_ns)
    )
    blocked = ~absences.preempted
    woken = np.where(
        blocked & within,
        wakings.time_ns[following],
        np.where(blocked & early, absences.start_ns, absences.woken_ns),
    )
    waker = np.where(within, wakings.waker[following], wakings.waker[earlier])
    waker = np.where(blocked & (within | early), waker, -1)
    return replace(absences, woken_ns=woken, waker=waker)


def causes(records: SystemRecords, moments: Moments, at: Integers) -> list[str | None]:
    """Name the system call, or page fault, during which each of some moments happened. Pure.

    None where that is not known.

    Args:
        records: The visit.
        moments: Its moments.
        at: Places of the moments; -1: none.
    """
    if Watched.CALLS not in records.watched or not len(at):
        return [None] * len(at)
    # One more at the end, reached by -1 too, stands for none.
    what, owner = np.append(moments.what, -1), np.append(moments.thread, -1)
    is_call = np.isin(what, (What.ENTER, What.EXIT))
    index = np.arange(len(what))
    before = np.maximum.accumulate(np.where(is_call, index, -1))[at]
    after = np.minimum.accumulate(np.where(is_call, index, len(what) - 1)[::-1])[::-1][at]
    follows, precedes = owner[before] == owner[at], owner[after] == owner[at]
    inside = follows & (what[before] == What.ENTER)
    outside = follows & (what[before] == What.EXIT)
    # No call has begun or ended before: the one that ends next has begun before the visit.
    begun = ~inside & ~outside & precedes & (what[after] == What.EXIT)
    unknown = (at < 0) | ~(inside | outside | begun)
    number = np.append(moments.value, -1)[np.where(inside, before, after)]
    found = []
    for known, called, value in zip(~unknown, inside | begun, number.tolist(), strict=True):
        name = call_name(records.machine, value) if called else _IN_FAULT
        found.append(name if known else None)
    return found


def accounts(records: SystemRecords, moments: Moments, calls: Calls, wakings: Wakings) -> Accounts:
    """Make one row for each wait, preemption, fault and transfer of bytes of a visit. Pure."""
    sheet = _Sheet(records)
    everyone = np.arange(len(records.threads))
    ends = thread_ends(records, moments)
    first = np.full(len(everyone), -1)
    left = np.flatnonzero(np.isin(moments.what, (What.OUT, What.PREEMPTED)))[::-1]
    first[moments.thread[left]] = moments.value[left]
    for watched in records.watched:
        zero = everyone * 0
        sheet.add(Account.WATCHED, everyone, zero, ends, ends, cause=watched.value, processor=first)
    if Watched.SWITCHES in records.watched:
        _add_absences(sheet, records, moments, read_absences(records, moments, wakings))
    for what, account in (
        (What.FAULT, Account.PAGE_FAULT),
        (What.MAJOR_FAULT, Account.MAJOR_FAULT),
    ):
        faults = moments.of(what)
        sheet.add(account, faults.thread, faults.time_ns, faults.time_ns)
    for what, account in (
        (What.CYCLES, Account.CYCLES),
        (What.INSTRUCTIONS, Account.INSTRUCTIONS),
        (What.CACHE_MISSES, Account.CACHE_MISSES),
    ):
        sampled = moments.of(what)
        sheet.add(account, sampled.thread, sampled.time_ns, sampled.time_ns, PERIODS[what])
    for account, names in ((Account.READ, READING + MOVING), (Account.WRITTEN, WRITING + MOVING)):
        numbers = [
            n for n in np.unique(calls.number).tolist() if call_name(records.machine, n) in names
        ]
        moved = np.isin(calls.number, numbers) & (calls.result > 0)
        end = calls.end_ns[moved]
        sheet.add(account, calls.thread[moved], end, end, calls.result[moved])
    return sheet.frame()


def _add_absences(sheet: _Sheet, records: SystemRecords, moments: Moments, off: Absences) -> None:
    runnable = off.end_ns > off.woken_ns
    sheet.add(
        Account.RUNNABLE,
        off.thread[runnable],
        off.woken_ns[runnable],
        off.end_ns[runnable],
        (off.end_ns - off.woken_ns)[runnable],
        processor=off.onto[runnable],
    )
    blocked = off.woken_ns > off.start_ns
    sheet.add(
        Account.BLOCKED,
        off.thread[blocked],
        off.start_ns[blocked],
        off.woken_ns[blocked],
        (off.woken_ns - off.start_ns)[blocked],
        cause=causes(records, moments, off.at[blocked]),
        processor=off.onto[blocked],
    )
    for account, mask, time in (
        (Account.PREEMPTED, off.preempted, off.start_ns),
        (Account.MIGRATION, off.migrated, off.end_ns),
    ):
        sheet.add(account, off.thread[mask], time[mask], time[mask])
    woken = off.waker >= 0
    names = {**records.names, 0: _INTERRUPT}
    wakers = [names.get(each, _ENDED) for each in off.waker[woken].tolist()]
    time = off.woken_ns[woken]
    sheet.add(Account.WOKEN, off.thread[woken], time, time, cause=wakers)


class _Sheet:
    """Accounts of a visit, in the making."""

    def __init__(self, records: SystemRecords) -> None:
        self._begin_ns = records.begin_ns
        numbers = np.array([each.number for each in records.threads], np.int64)
        self._threads = thread.named(numbers, records.pythons)
        named = [each.process or records.names.get(each.number) for each in records.threads]
        self._names = pl.Series(named, dtype=pl.String)
        self._exact = not any(each.counts for each in records.threads)
        self._frames: list[pl.DataFrame] = []

    def add(  # noqa: PLR0913  # what an account has
        self,
        what: Account,
        owner: Integers,
        start_ns: Integers,
        end_ns: Integers,
        amount: Integers | int = 1,
        *,
        cause: str | Sequence[str | None] | None = None,
        processor: Integers | int = -1,
    ) -> None:
        """Add accounts of one sort, of threads by index; times since the visit began."""
        if not len(owner):
            return
        columns = {
            "start_ns": start_ns + self._begin_ns,
            "end_ns": end_ns + self._begin_ns,
            "thread": self._threads[owner],
            "thread_name": self._names.gather(owner),
            "what": [what.value] * len(owner),
            "cause": [cause] * len(owner) if isinstance(cause, str) or cause is None else cause,
            "amount": np.broadcast_to(amount, len(owner)).astype(np.float64),
            "processor": np.broadcast_to(processor, len(owner)).astype(np.int32),
            "exact": [self._exact] * len(owner),
        }
        frame = pl.DataFrame(columns, schema=ACCOUNT_SCHEMA)
        known = pl.when(pl.col("processor") >= 0).then("processor")
        self._frames.append(frame.with_columns(processor=known))

    def frame(self) -> Accounts:
        """Return all accounts."""
        return pl.concat([pl.DataFrame(schema=ACCOUNT_SCHEMA), *self._frames])


def counted(records: SystemRecords) -> Accounts:
    """Make one row for each thread and counter of /proc, a sum over the visit. Pure."""
    sheet = _Sheet(records)
    length = records.end_ns - records.begin_ns
    known = [each.counts for each in records.threads if each.counts]
    everyone = np.flatnonzero([each.counts is not None for each in records.threads])
    running = np.clip([each.running_ns for each in known], 0, length)
    runnable = np.clip([each.runnable_ns for each in known], 0, length - running)
    sums = (
        *((Account.WATCHED, 0 * running + length, watched.value) for watched in records.watched),
        (Account.RUNNABLE, runnable, None),
        (Account.BLOCKED, length - running - runnable, None),
        (Account.PREEMPTED, np.array([each.preempted for each in known]), None),
        (Account.PAGE_FAULT, np.array([each.page_faults for each in known]), None),
        (Account.MAJOR_FAULT, np.array([each.major_faults for each in known]), None),
    )
    for what, amount, cause in sums:
        some = amount > 0
        owner = everyone[some]
        sheet.add(what, owner, 0 * owner, 0 * owner + length, amount[some], cause=cause)
    return sheet.frame()
