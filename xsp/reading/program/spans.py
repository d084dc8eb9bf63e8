"""Spans of a program's rows: the frame of a trace, drawn so that children lie in their parents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.inexact import FEWEST_RUNS, Inexact
from xsp.level import Kind
from xsp.matching import generations, path_names
from xsp.reading.accounting import CALLS, THREADS, TIMELINE, with_call_rows
from xsp.reading.program.tree import Rows, of_clock
from xsp.text import writable
from xsp.trace import SPAN_SCHEMA

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_TYPES = {"system_calls": CALLS, "thread_states": THREADS, "thread_timeline": TIMELINE}
_PLACES = ("device", "stream")
_SUMS = ("total_ns", "reach_ns", "count", "measured_ns", "added_ns", "device_ns", "busy_ns")


def spans_of(
    rows: Rows, self_ns: Floats, own: Mapping[int, Mapping[str, Any]], thread: int
) -> pl.DataFrame:
    """Return the spans of a trace, one for each row.

    Args:
        rows: The rows, the block first.
        self_ns: Self time of each row.
        own: What ran in the self time of rows.
        thread: Identifier of the thread that the block is on.
    """
    order = _depth_first(rows)
    start, length = _drawn(rows, order)
    measured, measured_length = _drawn(rows, order, measured=True)
    names = pl.Series([writable(label.name) for label in rows.label], dtype=pl.String)
    paths = path_names(names, rows.parent, list(generations(rows.parent))).to_list()
    keys = [(int.from_bytes(blake2b(path.encode(), digest_size=8).digest()) or 1) for path in paths]
    table = []
    for row in order:
        label, parent = rows.label[row], int(rows.parent[row])
        on_device = rows.thread[row] < 0
        total, reach = float(rows.total_ns[row]), float(rows.reach_ns[row])
        known = rows.found[row]
        entry: dict[str, Any] = {
            "span_id": keys[row],
            "parent_id": keys[parent] if parent >= 0 else None,
            "level": label.kind.level.label,
            "kind": label.kind.value,
            "name": names[row],
            "path": paths[row],
            "start_ns": int(start[row]),
            "end_ns": int(start[row] + length[row]),
            "latency_ns": total,
            "latency_low_ns": max(total - reach, 0.0) if reach > 0 else None,
            "latency_high_ns": total + reach if reach > 0 else None,
            "self_ns": float(self_ns[row]),
            "overhead_ns": float(rows.added_ns[row]),
            "device_ns": _or_none(rows.device_ns[row]),
            "measured_start_ns": int(measured[row]),
            "measured_end_ns": int(measured[row] + measured_length[row]),
            "runs": int(rows.seen[row]),
            "thread": None if on_device else int(rows.thread[row]) or thread,
            "device": known.get("device") if on_device else None,
            "stream": known.get("stream") if on_device else None,
            "correlation_id": None,
            "attributes": writable(_attributes(rows, row) | dict(own.get(row, {}))),
        }
        table.append(entry)
    return with_call_rows(_frame(table))


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _attributes(rows: Rows, row: int) -> dict[str, Any]:
    label = rows.label[row]
    reasons = []
    if rows.inferred[row] and rows.seen[row] < FEWEST_RUNS <= rows.count[row]:
        reasons.append(Inexact.FEW_SAMPLES.value)
    known: dict[str, Any] = {
        **{k: v for k, v in label.attributes.items() if v is not None},
        **{k: v for k, v in rows.found[row].items() if k not in _PLACES},
        "exact": not reasons,
        "inexact": reasons or None,
        "calls": max(round(float(rows.count[row])), 1),
        "busy_ns": _or_none(rows.busy_ns[row]),
    }
    if label.kind is Kind.REGION:
        known["program_part"] = True
    if label.group >= 0:
        known["is_group"] = True
    if rows.count[row] > 1.5:
        for name in ("least_ns", "median_ns", "most_ns"):
            known[name] = _or_none(getattr(rows, name)[row])
        known["two_kinds"] = rows.kinds[row] or None
    if rows.inferred[row]:
        known["calls_inferred"] = True
    if rows.errors[row]:
        [(name, count), *_] = sorted(rows.errors[row].items(), key=lambda each: -each[1])
        known["error"] = name
        known["error_calls"] = count
    return {name: value for name, value in known.items() if value is not None}


def _depth_first(rows: Rows) -> list[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for row in range(1, len(rows)):
        children[int(rows.parent[row])].append(row)
    for mine in children.values():
        mine.sort(key=lambda row: int(rows.begin_ns[row]))
    order, waiting = [], [0]
    while waiting:
        order.append(waiting.pop())
        waiting += reversed(children.get(order[-1], ()))
    return order


def _drawn(rows: Rows, order: Sequence[int], *, measured: bool = False) -> tuple[Ints, Ints]:
    """Return start and length of each row: those of one thread side by side in the row around."""
    wanted = rows.measured_ns if measured else rows.total_ns
    busy = np.where(np.isfinite(rows.busy_ns), np.minimum(rows.busy_ns, wanted), wanted)
    start, length = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    length[0] = round(float(busy[0]))
    lanes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row in order[1:]:
        lanes[int(rows.parent[row]), int(rows.thread[row])].append(row)
    of_parent: defaultdict[int, list[list[int]]] = defaultdict(list)
    for (parent, _), lane in lanes.items():
        of_parent[parent].append(lane)
    for row in order:
        for lane in of_parent.get(row, ()):
            whole = sum(float(busy[child]) for child in lane)
            fits = min(1.0, length[row] / whole) if whole > 0 else 1.0
            at = int(start[row])
            for child in lane:
                length[child] = int(float(busy[child]) * fits)
                start[child] = at
                at += int(length[child])
    return start, length


def _frame(table: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    plain = pl.DataFrame(
        [{name: row[name] for name in SPAN_SCHEMA} for row in table], schema=SPAN_SCHEMA
    )
    attributes = [row["attributes"] for row in table]
    names = dict.fromkeys(name for row in attributes for name in row)
    columns = [_series(name, [row.get(name) for row in attributes]) for name in names]
    fields = pl.DataFrame(columns) if columns else pl.DataFrame({"exact": [True] * len(table)})
    return plain.with_columns(attributes=fields.to_struct())


def _series(name: str, values: list[Any]) -> pl.Series:
    try:
        return pl.Series(name, values, _TYPES.get(name), strict=True)
    except (TypeError, pl.exceptions.PolarsError):
        return pl.Series(name, [None if value is None else str(value) for value in values])


def only(rows: Rows, top: int) -> Rows:
    """Return the rows of one row and below it, for one occurrence on average."""
    chosen = [top]
    inside = {top}
    for row in range(top + 1, len(rows)):
        if int(rows.parent[row]) in inside:
            inside.add(row)
            chosen.append(row)
    at = np.array(chosen)
    rank = {row: number for number, row in enumerate(chosen)}
    number = max(float(rows.count[top]), 1.0)
    scaled = {name: getattr(rows, name)[at] / number for name in _SUMS}
    # One member has all of the clock, however many ran at once.
    busy_ns = scaled["busy_ns"] / of_clock(rows)[top]
    scaled["busy_ns"] = np.where(busy_ns < (1 - 1e-9) * scaled["total_ns"], busy_ns, np.nan)
    return Rows(
        label=[rows.label[row] for row in chosen],
        parent=np.array([-1, *(rank[int(rows.parent[row])] for row in chosen[1:])]),
        seen=rows.seen[at],
        inferred=rows.inferred[at],
        least_ns=rows.least_ns[at],
        median_ns=rows.median_ns[at],
        most_ns=rows.most_ns[at],
        kinds=[rows.kinds[row] for row in chosen],
        begin_ns=rows.begin_ns[at],
        thread=rows.thread[at],
        errors=[rows.errors[row] for row in chosen],
        found=[  # one occurrence has no clock of its own
            {name: value for name, value in rows.found[row].items() if name != "elsewhere_ns"}
            for row in chosen
        ],
        of_item=np.zeros(0, np.int64),
        **scaled,
    )
