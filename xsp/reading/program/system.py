"""Charges what the operating system did in windows of a program to the rows of its tree.

Windows in which the system is recorded cover a part of the program. A row gets the mean of those of
its occurrences that lie whole in them.

    forward  100 x 10 ms; 12 of them in windows, blocked for 30 ms      forward: blocked 2.5 ms
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.matching import innermost
from xsp.provider import Account, Accounts, SpanRows, Watched, concat_rows
from xsp.reading.accounting import (
    NAMES,
    charges,
    fold_calls,
    of_workers,
    thread_charges,
    thread_timeline,
)
from xsp.reading.program.events import Items
from xsp.reading.program.forest import Forest
from xsp.reading.program.tree import Rows
from xsp.reading.runs import read_visit
from xsp.record.program import ProgramRecord, Records, ThreadTime
from xsp.record.session import PlannedVisit, Visit
from xsp.warning import TraceWarning, WarningCount

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# What recording costs: between two machines of 360 and 1,000 ns, 1,000 and 1,250, 180 and 660
# (benchmarks/system.py).
CALL_NS, SWITCH_NS, FAULT_NS = 700, 1_100, 400
_MOST = 0.8  # of a row's time: rows below that take as much tell of it
NATIVE = "native thread"
_ACCOUNTED = (*NAMES.values(), "running_ns")


@dataclass(frozen=True, slots=True)
class System:
    """What was recorded in windows of the system.

    Attributes:
        accounts: What threads were charged.
        calls: Their system calls.
        warnings: What could not be recorded.
        counts: How many records were lost.
    """

    accounts: Accounts
    calls: SpanRows
    warnings: tuple[TraceWarning, ...]
    counts: tuple[WarningCount, ...]


def read_system(record: ProgramRecord) -> System | None:
    """Interpret the records of windows of the system; None if there are none."""
    read = [
        read_visit(
            Visit(
                PlannedVisit(window.pass_), "window", window.thread,
                ((window.begin_ns, window.end_ns),), window.kept, (0,),
            ),
            record.providers,
            record.inside_costs,
        )
        for window in record.windows
        if window.records is Records.SYSTEM and window.pass_ is not None and window.end_ns
    ]  # fmt: skip
    if not read:
        return None
    return System(
        pl.concat([each.accounts for each in read]),
        concat_rows([each.rows for each in read]),
        tuple(dict.fromkeys(warning for each in read for warning in each.warnings)),
        tuple(count for each in read for count in each.counts),
    )


def with_recording(forest: Forest, system: System, record: ProgramRecord) -> Forest:
    """Return the forest with what recording the system took noted as xsp's own work."""
    logs = {thread: number for number, (thread, _) in enumerate(record.log.threads)}
    costs = {Account.BLOCKED: SWITCH_NS, Account.PREEMPTED: SWITCH_NS, Account.PAGE_FAULT: FAULT_NS}
    events = [system.calls.select("start_ns", "thread").with_columns(cost=pl.lit(CALL_NS))]
    events += [
        system.accounts.filter(pl.col("what") == account.value, "exact").select(
            "start_ns", "thread", cost=pl.lit(cost)
        )
        for account, cost in costs.items()
    ]
    known = pl.concat(events).filter(pl.col("thread").is_in(list(logs)))
    begin = known["start_ns"].to_numpy()
    zero = np.zeros(len(begin), np.int64)
    thread = np.array([logs[each] for each in known["thread"].to_list()], np.int64)
    work = Items(
        zero, zero, begin, begin + known["cost"].to_numpy(), thread, zero, zero, zero, zero
    )
    return replace(forest, pauses=forest.pauses.joined(work))


def charge(rows: Rows, forest: Forest, system: System | None, record: ProgramRecord) -> None:
    """Note in `rows.found` what each row is charged, of one of its occurrences on average.

    Only occurrences that lie whole in windows tell of a row. A row without such is told by those
    below it, if they take most of its time; the block by the kernel's own counters.
    """
    own_ns = rows.total_ns / np.maximum(rows.count, 1e-9)  # of one occurrence
    if system is not None:
        _charge_whole(rows, forest, system, record, own_ns)
        for at in range(len(rows) - 1, 0, -1):  # children come after their parents
            if "running_ns" not in rows.found[at]:
                _sum_up(rows, at, own_ns)
    _charge_block(rows, record)


def _charge_whole(
    rows: Rows, forest: Forest, system: System, record: ProgramRecord, own_ns: Floats
) -> None:
    """Charge rows by their occurrences that lie whole in windows."""
    items, of = forest.items, rows.of_item
    mine = np.flatnonzero(~forest.alone)
    idents = np.array([*(thread for thread, _ in record.log.threads), record.thread])
    thread = idents[np.minimum(items.thread[mine], len(idents) - 1)]
    begin, end = items.begin[mine], items.end[mine]
    charged = charges(system.accounts, begin, end, thread, steps=np.zeros(0, np.int64))
    whole = charged.watched_ns > 0
    size, row = len(rows), of[mine]
    number = np.bincount(row, whole, size)
    for name in _ACCOUNTED:
        values = charged.amounts[name]
        known = whole & ~np.isnan(values)
        sums, seen_ns, seen = (
            np.bincount(row[known], each, size)
            for each in (values[known], charged.watched_ns[known], np.ones(int(known.sum())))
        )
        for at in np.flatnonzero(seen > 0).tolist():
            # Parts of a time are parts of the latency; others are counted.
            share = own_ns[at] / seen_ns[at] if name.endswith("_ns") else 1.0 / seen[at]
            rows.found[at][name] = float(sums[at] * share)
    for name, causes in (("blocked_in", charged.blocked_in), ("woken_by", charged.woken_by)):
        for at, cause in _usual(causes, row).items():
            rows.found[at][name] = cause
    for at in np.flatnonzero(number > 0).tolist():
        if rows.label[at].group >= 0:
            own = np.flatnonzero((row == at) & whole)
            rows.found[at]["thread_states"] = thread_charges(system.accounts, begin[own], end[own])
    windows = [w for w in record.windows if w.records is Records.SYSTEM and w.end_ns]
    one = windows[len(windows) // 2]
    drawn = thread_timeline(system.accounts, one.begin_ns, one.end_ns or one.begin_ns)
    rows.found[0]["thread_timeline"] = drawn
    _place_calls(rows, forest, system, (mine, thread), np.where(number > 0, number, np.nan), whole)
    _place_workers(rows, system, own_ns)


def _sum_up(rows: Rows, at: int, own_ns: Floats) -> None:
    """Charge a row what the rows below it are charged, if these take most of its time."""
    below = [
        row
        for row in np.flatnonzero(rows.parent == at).tolist()
        if "running_ns" in rows.found[row] and rows.thread[row] == rows.thread[at]
    ]
    covered = float(rows.total_ns[below].sum())
    if not covered >= _MOST * rows.total_ns[at] > 0:
        return
    for name in _ACCOUNTED:
        known = [row for row in below if name in rows.found[row]]
        if len(known) == len(below):
            whole = sum(rows.found[row][name] * rows.count[row] for row in known)
            rows.found[at][name] = float(whole / covered * own_ns[at])


def _charge_block(rows: Rows, record: ProgramRecord) -> None:
    """Charge the block what the kernel's counters say of its thread; xsp's own work left out."""
    whole_ns, times = float(rows.total_ns[0]), record.thread_times
    own = times.get(record.native)
    if own is None or whole_ns <= 0:
        return
    runnable = min(float(own.runnable_ns), whole_ns)
    running = min(max(own.running_ns - float(rows.added_ns[0]), 0.0), whole_ns - runnable)
    rows.found[0] |= {
        "running_ns": running,
        "runnable_ns": runnable,
        "blocked_ns": whole_ns - running - runnable,
    }
    unknown = dict.fromkeys(("preempted", "migrations", "page_faults"))
    rows.found[0]["thread_states"] = [
        {
            "name": each.name if each.python or each.name != own_name else NATIVE,
            "python": each.python,
            "running_ns": float(each.running_ns),
            "runnable_ns": float(each.runnable_ns),
            "blocked_ns": max(whole_ns - each.running_ns - each.runnable_ns, 0.0),
            **unknown,
        }
        for own_name in [_process_name(times)]
        for each in sorted(times.values(), key=lambda each: -each.running_ns)
        if each.running_ns > 0
    ]


def _process_name(times: Mapping[int, ThreadTime]) -> str:
    """Return the name that most threads of native libraries have: that of the process."""
    names = [each.name for each in times.values() if not each.python]
    return max(names, key=names.count, default="")


def _usual(causes: list[str | None], row: Ints) -> dict[int, str]:
    table = pl.DataFrame({"row": row, "cause": causes}, schema_overrides={"cause": pl.String})
    usual = (
        table.drop_nulls()
        .group_by("row", "cause", maintain_order=True)
        .len()
        .sort("len", descending=True, maintain_order=True)
        .unique("row", keep="first", maintain_order=True)
    )
    return dict(zip(usual["row"].to_list(), usual["cause"].to_list(), strict=True))


def _place_calls(
    rows: Rows,
    forest: Forest,
    system: System,
    items: tuple[Ints, Ints],
    number: Floats,
    whole: NDArray[np.bool_],
) -> None:
    """Note the system calls right below each row, of its occurrences that lie whole in windows."""
    mine, thread = items
    place = np.full(len(forest.items), -1)
    place[mine] = np.arange(len(mine))
    above = forest.parent[mine]
    parent = np.where(above >= 0, place[np.maximum(above, 0)], -1)
    calls = system.calls
    found = innermost(
        forest.items.begin[mine], forest.items.end[mine], thread, parent,
        calls["start_ns"].to_numpy(), calls["thread"].fill_null(-1).to_numpy(),
    )  # fmt: skip
    kept = (found >= 0) & whole[np.maximum(found, 0)]
    if kept.any():
        known = calls.filter(pl.Series(kept))
        below = rows.of_item[mine[found[kept]]]
        for at, told in fold_calls(
            known, below, known["end_ns"].to_numpy(), found[kept], number
        ).items():
            rows.found[at]["system_calls"] = told


def _place_workers(rows: Rows, system: System, own_ns: Floats) -> None:
    """Note in the wait for batches what part of their time workers spend in each call."""
    calls = system.calls.filter(pl.Series(of_workers(system.calls)))
    loading = [at for at, label in enumerate(rows.label) if label.attributes.get("workers")]
    at = max(loading, key=lambda row: rows.total_ns[row], default=-1)
    if at < 0 or not calls.height or own_ns[at] <= 0:
        return
    workers = calls["thread"].unique()
    watched = system.accounts.filter(
        pl.col("what") == Account.WATCHED.value,
        pl.col("cause") == Watched.CALLS.value,
        pl.col("thread").is_in(workers.implode()),
    )
    watched_ns = (watched["end_ns"] - watched["start_ns"]).sum() / len(workers)
    waits = np.full(len(rows), max(watched_ns / own_ns[at], 1e-9))
    below, each = np.full(calls.height, at), np.arange(calls.height)
    folded = fold_calls(calls, below, calls["end_ns"].to_numpy(), each, waits)
    rows.found[at].setdefault("system_calls", []).extend(folded[at])
