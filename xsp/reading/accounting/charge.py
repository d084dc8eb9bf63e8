"""Sums accounts over spans: what lies between a span's begin and end on its thread is charged.

An account lasts, or is a moment. The sum up to each moment is a line that rises; what a span is
charged is by how much the line rises between the span's ends, so that an account that reaches over
a border is cut there, and spans are charged what those inside them are.

    blocked      2-6 (4 ns)
    span A 0-4   charged 2 of it
    span B 4-8   charged 2 of it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.provider import Account, Accounts, Watched

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# What is charged to spans, by the source that must have been watched for it to be known.
_SOURCES: Mapping[Account, Watched] = {
    Account.RUNNABLE: Watched.SWITCHES,
    Account.BLOCKED: Watched.SWITCHES,
    Account.PREEMPTED: Watched.SWITCHES,
    Account.MIGRATION: Watched.SWITCHES,
    Account.PAGE_FAULT: Watched.FAULTS,
    Account.MAJOR_FAULT: Watched.FAULTS,
    Account.READ: Watched.CALLS,
    Account.WRITTEN: Watched.CALLS,
    Account.CYCLES: Watched.COUNTERS,
    Account.INSTRUCTIONS: Watched.COUNTERS,
    Account.CACHE_MISSES: Watched.COUNTERS,
}
NAMES: Mapping[Account, str] = {
    Account.RUNNABLE: "runnable_ns",
    Account.BLOCKED: "blocked_ns",
    Account.PREEMPTED: "preempted",
    Account.MIGRATION: "migrations",
    Account.PAGE_FAULT: "page_faults",
    Account.MAJOR_FAULT: "major_faults",
    Account.READ: "io_read_bytes",
    Account.WRITTEN: "io_written_bytes",
    Account.CYCLES: "cycles",
    Account.INSTRUCTIONS: "instructions",
    Account.CACHE_MISSES: "cache_misses",
}
_NOT_SUMMED = (Account.MIGRATION,)  # sums over a visit do not tell it
_WATCHED_WHOLE = 0.999  # of a span's time: clocks of switches and spans are read one after another

# One row for each thread, on average over steps; of the root alone.
_OF_THREAD = (
    "running_ns", "runnable_ns", "blocked_ns", "preempted", "migrations", "page_faults",
)  # fmt: skip
THREADS = pl.List(
    pl.Struct(
        # `python`: whether it runs Python; a native library made the others.
        {"name": pl.String, "python": pl.Boolean, **dict.fromkeys(_OF_THREAD, pl.Float64)}
    )
)


@dataclass(frozen=True, slots=True)
class Charges:
    """What spans were charged.

    Attributes:
        watched_ns: For how long each span was watched; 0 if too little of it was.
        amounts: For each attribute its value in that time, for each span; NaN where that was not
            watched.
        blocked_in: For each span the system call in which it was blocked longest, or None.
        woken_by: For each span who woke it most often, or None.
    """

    watched_ns: Floats
    amounts: Mapping[str, Floats]
    blocked_in: list[str | None]
    woken_by: list[str | None]


def charges(
    accounts: Accounts,
    start: Ints,
    end: Ints,
    thread: Ints,
    *,
    steps: Ints,
    least: float = _WATCHED_WHOLE,
) -> Charges:
    """Charge accounts to spans.

    Args:
        accounts: Accounts of any thread, in any order (`xsp.provider.ACCOUNT_SCHEMA`).
        start: When each span began, shape `[spans]`.
        end: When each span ended.
        thread: Thread of each span.
        steps: Numbers of the spans that are steps, to which sums over a visit are charged, too, by
            their time.
        least: Part of a span's time that must have been watched.
    """
    amounts = {name: np.full(len(start), np.nan) for name in NAMES.values()}
    in_, by = np.full(len(start), None, object), np.full(len(start), None, object)
    whole_ns = np.zeros(len(start))
    for (one,), mine in accounts.group_by("thread"):
        for exact in (True, False):
            spans = np.flatnonzero(thread == one)
            spans = spans if exact else np.intersect1d(spans, steps)
            known = mine.filter(pl.col("exact") == exact)
            if not len(spans) or not known.height:
                continue
            ends = start[spans], end[spans]
            for source in Watched:
                watched = _charged(known, Account.WATCHED, ends, cause=source)
                enough = (watched >= least * (ends[1] - ends[0])) & (watched > 0)
                seen = spans[enough]
                whole_ns[seen] = np.maximum(whole_ns[seen], watched[enough])
                for account in NAMES:
                    if _SOURCES[account] is not source or (account in _NOT_SUMMED and not exact):
                        continue
                    values = amounts[NAMES[account]]
                    unknown = seen[np.isnan(values[seen])]
                    values[unknown] = _charged(known, account, (start[unknown], end[unknown]))
            if exact:
                seen = spans[whole_ns[spans] > 0]
                ends = start[seen], end[seen]
                in_[seen] = _most(known, Account.BLOCKED, ends)
                by[seen] = _most(known, Account.WOKEN, ends)
    waited = amounts["runnable_ns"] + amounts["blocked_ns"]
    amounts["running_ns"] = np.maximum(whole_ns - waited, 0.0)
    return Charges(whole_ns, amounts, in_.tolist(), by.tolist())


def thread_charges(accounts: Accounts, start: Ints, end: Ints) -> list[dict[str, Any]]:
    """Charge accounts to each thread, whether it ran spans or not.

    Args:
        accounts: Accounts of any thread, in any order.
        start: When each step began.
        end: When each step ended.

    Returns:
        For each thread its name, and what it was charged in a step of mean length, by the time in
        which it was watched (`THREADS`); those that ran longest first, those that did not run left
        out.
    """
    result = []
    lasts = float((end - start).mean()) if len(start) else 0.0
    every = np.arange(len(start))
    for (thread,), mine in accounts.group_by("thread", maintain_order=True):
        on = np.full(len(start), thread)
        found = charges(mine, start, end, on, steps=every, least=0.0)
        known = ~np.isnan(found.amounts["running_ns"])
        watched_ns = float(found.watched_ns[known].sum())
        if watched_ns > 0 and found.amounts["running_ns"][known].any():
            rate = {key: _sum(found.amounts[key]) for key in _OF_THREAD}
            name = mine["thread_name"].drop_nulls().first() or f"thread {thread}"
            row = {k: None if v is None else v / watched_ns * lasts for k, v in rate.items()}
            result.append({"name": name, "python": bool(thread > 0), **row})
    return sorted(result, key=lambda row: -(row["running_ns"] or 0.0))


def _sum(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else None


def _charged(
    accounts: Accounts, account: Account, ends: tuple[Ints, Ints], cause: str | None = None
) -> Floats:
    """Return the sum of one sort of account between the ends of each span."""
    chosen = accounts.filter(pl.col("what") == account.value)
    if cause is not None:
        chosen = chosen.filter(pl.col("cause") == cause)
        chosen = chosen.with_columns(
            amount=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
        )
    return _between(chosen, *ends)


def _between(chosen: Accounts, start: Ints, end: Ints) -> Floats:
    """Return by how much the sum of accounts rises between starts and ends.

    >>> import polars as pl
    >>> blocked = pl.DataFrame({"start_ns": [2, 7], "end_ns": [6, 7], "amount": [4.0, 1.0]})
    >>> _between(blocked, np.array([0, 4]), np.array([4, 8])).tolist()
    [2.0, 3.0]
    """
    first, last = chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy()
    amount = chosen["amount"].to_numpy()
    moment = first == last
    at = np.argsort(first[moment], kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(amount[moment][at])])
    moments = first[moment][at]
    result = sums[np.searchsorted(moments, end)] - sums[np.searchsorted(moments, start)]
    if not moment.all():
        rate = amount[~moment] / (last - first)[~moment]
        bends = np.concatenate([first[~moment], last[~moment]])
        slopes = np.concatenate([rate, -rate])
        order = np.argsort(bends, kind="stable")
        bends, slope = bends[order], np.cumsum(slopes[order])
        line = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(bends))])
        zero = bends[0]  # so that times of days are not rounded to some ns
        result += np.interp(end - zero, bends - zero, line)
        result -= np.interp(start - zero, bends - zero, line)
    return np.asarray(np.maximum(result, 0.0), np.float64)


def _most(accounts: Accounts, account: Account, ends: tuple[Ints, Ints]) -> NDArray[np.object_]:
    """Return for each span the cause of most of an account; None where none is known."""
    chosen = accounts.filter((pl.col("what") == account.value) & pl.col("cause").is_not_null())
    result, best = np.full(len(ends[0]), None, object), np.zeros(len(ends[0]))
    for (cause,), mine in chosen.group_by("cause", maintain_order=True):
        amount = _between(mine, *ends)
        result[amount > best] = cause
        best = np.maximum(best, amount)
    return result
