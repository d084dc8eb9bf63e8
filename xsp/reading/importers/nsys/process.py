"""Makes a recording of each process in a database of Nsight Systems."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows
from xsp.reading.importers.nsys import about, device, host, nvtx, remark, table
from xsp.reading.importers.nsys.database import Database
from xsp.reading.importers.nsys.table import Tables
from xsp.reading.importers.recording import Recording
from xsp.warning import TraceWarning


def recordings(database: Database) -> tuple[Recording, ...]:
    """Return a recording of each process that has spans.

    Where some processes used a GPU or announced ranges, processes of which only calls of the
    system were seen, such as the shell that started the others, are left out.
    """
    tables = table.read(database)
    processes = {
        number: found
        for number, own in table.by_process(tables).items()
        for found in [_spans(database, own)]
        if found[0].height
    }
    busy = {n: f for n, f in processes.items() if (f[0]["kind"] != Kind.SYSCALL.value).any()}
    idle = [
        about.process_name(database, n, sole=False) for n in processes if busy and n not in busy
    ]
    of_file = list(remark.of_file(database, tables, idle))
    shown = busy or processes
    return tuple(
        _recording(
            database,
            number,
            rows,
            [*(of_file if not place else ()), *warnings],
            sole=len(shown) == 1,
        )
        for place, (number, (rows, warnings)) in enumerate(shown.items())
    )


def _spans(database: Database, tables: Tables) -> tuple[SpanRows, list[TraceWarning]]:
    """Return all rows of a process, and what is missing of them."""
    launches = host.launches(database, tables)
    activities = device.activities(database, tables, launches)
    ranges, others = nvtx.ranges(database, tables)
    rows = concat_rows(
        [
            ranges,
            host.library_calls(database, tables),
            launches,
            activities,
            host.system_calls(database, tables),
        ]
    )
    return rows, list(remark.of_process(tables, rows, others))


def _recording(
    database: Database, process: int, rows: SpanRows, warnings: list[TraceWarning], *, sole: bool
) -> Recording:
    steps, others = part_steps(rows)
    return Recording(
        tool=about.tool(database),
        rows=others,
        roots=steps,
        name=about.process_name(database, process, sole=sole),
        warnings=tuple(warnings),
        environment=about.environment(database, process),
        unix_ns=about.unix_ns(database),
        rank=about.rank(database, process, sole=sole),
        host=about.host(database),
    )


# Separates the ranges that are steps of one process from its other rows.

_MOST = 0.5  # of all launches


def part_steps(rows: SpanRows) -> tuple[SpanRows, SpanRows]:
    """Return the steps in the order of time, of which there may be none, and the other rows."""
    launches = rows.filter(pl.col("kind") == Kind.LAUNCH.value)
    if launches["thread"].null_count() == launches.height:
        return no_rows(), rows
    # The thread that launched most.
    counts = launches.drop_nulls("thread").group_by("thread").len().sort("len", "thread")
    busiest = int(counts["thread"][-1])
    # The spans of the name that recurs, whatever its numbers; none where several do.
    spans = _outermost(rows.with_row_index("row"), busiest)
    name = pl.col("name").str.replace_all(r"\d+", "#")
    recurring = spans.filter(pl.len().over(name) > 1)
    alone = recurring.select(name.n_unique()).item() == 1
    steps = recurring if alone else recurring.clear()
    if not steps.height or _inside(steps, launches) < _MOST * launches.height:
        return no_rows(), rows
    is_step = np.zeros(rows.height, bool)
    is_step[steps["row"].to_numpy()] = True
    return steps.drop("row"), rows.filter(~is_step)


def _outermost(rows: pl.DataFrame, thread: int) -> pl.DataFrame:
    """Return the region spans of a thread that lie in no other of the thread, by time."""
    spans = rows.filter((pl.col("kind") == Kind.REGION.value) & (pl.col("thread") == thread))
    ordered = spans.sort(["start_ns", "end_ns"], descending=[False, True])
    reached = ordered["end_ns"].cum_max().shift(1)
    return ordered.filter((ordered["start_ns"] >= reached).fill_null(value=True))


def _inside(steps: pl.DataFrame, launches: SpanRows) -> int:
    """Return how many launches, of whatever thread, began in a step."""
    start = launches["start_ns"].to_numpy()
    at = np.searchsorted(steps["start_ns"].to_numpy(), start, side="right") - 1
    ends = steps["end_ns"].to_numpy()
    return int(np.count_nonzero((at >= 0) & (start < ends[np.maximum(at, 0)])))
