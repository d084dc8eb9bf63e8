"""Charges what the operating system did in windows of a program to the rows of its tree.

Windows in which the system is recorded have a part of the program. What a row's occurrences were
charged in them stands for all, by the time of which it is a part.

    forward  100 x 10 ms; in 12 windows 120 ms, of these 30 blocked      forward: blocked 2.5 ms
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.matching import innermost
from xsp.provider import Account, Accounts, SpanRows, concat_rows
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
from xsp.record.program import ProgramRecord, Records
from xsp.record.session import PlannedVisit, Visit
from xsp.warning import TraceWarning, WarningCount

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# What recording costs: between two machines of 360 and 1,000 ns, 1,000 and 1,250, 180 and 660
# (benchmarks/system.py).
CALL_NS, SWITCH_NS, FAULT_NS = 700, 1_100, 400
_WHOLE = 0.999  # of an occurrence's time: it lies whole in a window
_LEAST = 0.5  # occurrences of a row that must have been watched
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
    costs = {Account.BLOCKED: SWITCH_NS, Account.RUNNABLE: SWITCH_NS, Account.PAGE_FAULT: FAULT_NS}
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


def charge(rows: Rows, forest: Forest, system: System, record: ProgramRecord) -> None:
    """Note in `rows.found` what each row is charged, of one of its occurrences on average."""
    items, of = forest.items, rows.of_item
    mine = np.flatnonzero(~forest.alone)
    idents = np.array([*(thread for thread, _ in record.log.threads), record.thread])
    thread = idents[np.minimum(items.thread[mine], len(idents) - 1)]
    begin, end = items.begin[mine], items.end[mine]
    charged = charges(system.accounts, begin, end, thread, steps=np.zeros(0, np.int64), least=0.0)
    size, row = len(rows), of[mine]
    watched = np.bincount(row, charged.watched_ns, size)
    each = rows.total_ns / np.maximum(rows.count, 1e-9)  # of one occurrence
    often = np.where(each > 0, watched / np.maximum(each, 1.0), 0.0)
    enough = (watched > 0) & (often >= _LEAST)
    enough[0] = watched[0] > 0
    # Of a row some of whose occurrences lie whole in windows only these count.
    whole = charged.watched_ns >= _WHOLE * (end - begin)
    counts = whole | (np.bincount(row, whole, size) == 0)[row]
    for name in _ACCOUNTED:
        values = charged.amounts[name]
        known = ~np.isnan(values) & counts
        sums, seen, number = (
            np.bincount(row[known], of_each[known], size)
            for of_each in (values, charged.watched_ns, whole)
        )
        by_time = name.endswith("_ns")  # these are parts of a time, others are counted
        for at in np.flatnonzero(enough & (seen > 0)).tolist():
            share = each[at] / seen[at] if by_time or not number[at] else 1.0 / number[at]
            rows.found[at][name] = float(sums[at] * share)
    for name, causes in (("blocked_in", charged.blocked_in), ("woken_by", charged.woken_by)):
        for at, cause in _usual(causes, row).items():
            if enough[at]:
                rows.found[at][name] = cause
    if windows := [w for w in record.windows if w.records is Records.SYSTEM and w.end_ns]:
        one = windows[len(windows) // 2]
        drawn = thread_timeline(system.accounts, one.begin_ns, one.end_ns or one.begin_ns)
        rows.found[0]["thread_timeline"] = drawn
    for at in np.flatnonzero(enough).tolist():
        if at == 0 or rows.label[at].group >= 0:
            lasts = np.array([round(float(each[at]))])
            rows.found[at]["thread_states"] = _scaled(system.accounts, record, lasts)
    _place_calls(rows, forest, system, (mine, thread), np.where(enough, often, np.nan))


def _scaled(accounts: Accounts, record: ProgramRecord, lasts: Ints) -> list[dict[str, Any]]:
    """Return what each thread was charged, in the proportion of a time to that of the program."""
    begin, end = np.array([record.begin_ns]), np.array([record.end_ns])
    factor = float(lasts[0]) / max(float((end - begin)[0]), 1.0)
    return [
        {k: v if v is None or k == "name" else v * factor for k, v in state.items()}
        for state in thread_charges(accounts, begin, end)
    ]


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
    rows: Rows, forest: Forest, system: System, items: tuple[Ints, Ints], often: Floats
) -> None:
    """Note the system calls below each row; those of workers in the wait for their batches."""
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
    below = np.where(found >= 0, rows.of_item[mine[np.maximum(found, 0)]], -1)
    if (of_worker := of_workers(calls)).any():
        loading = [n for n, label in enumerate(rows.label) if label.attributes.get("workers")]
        below[of_worker] = max(loading, key=lambda n: rows.total_ns[n], default=-1)
    kept = (below >= 0) & ~np.isnan(often[np.maximum(below, 0)])
    if not kept.any():
        return
    known = calls.filter(pl.Series(kept))
    # A call is of the occurrence that it lies in; workers' calls lie in none.
    occurrence = np.where(found[kept] >= 0, found[kept], np.arange(int(kept.sum())))
    folded = fold_calls(known, below[kept], known["end_ns"].to_numpy(), occurrence, often)
    for at, told in folded.items():
        rows.found[at]["system_calls"] = told
