"""Folds system calls: one row for each name below each span, whatever their order was.

System calls differ in number and order from step to step, so that none has a counterpart in
another step. What is told of them is how many a step has, and how long they last together.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.inexact import Inexact
from xsp.level import Kind
from xsp.matching import generations, inside_costs, path_names
from xsp.provider import ATTRIBUTE, SpanRows
from xsp.trace import SPAN_SCHEMA

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_BESIDE = -1  # the thread that calls of other processes are drawn on
_STATES = ("running_ns", "runnable_ns", "blocked_ns")
_PROCESS = f"{ATTRIBUTE}process_name"

CALLS = pl.List(
    pl.Struct(
        {
            "name": pl.String,
            "process": pl.String,  # of which they were made, if not of the measured one
            "calls": pl.Float64,  # in a step, on average
            "latency_ns": pl.Float64,  # of all of them in a step, without what recording cost
            "errors": pl.Float64,  # that failed, in a step
            "bytes": pl.Float64,  # read or written in a step
            "steps": pl.Float64,  # the share of steps in which there was one
            "thread": pl.Int64,  # that made them; of several one
        }
    )
)


def fold_calls(
    calls: SpanRows,
    below: Ints,
    end: Ints,
    step: Ints,
    steps: int | Floats,
) -> dict[int, list[dict[str, Any]]]:
    """Sum up system calls of several steps by the span that they lie in and their name.

    Args:
        calls: System calls (`xsp.provider.ROW_SCHEMA`).
        below: Number of the span that each lies in.
        end: When each ended, at most with its step.
        step: Number of the step of each.
        steps: How many steps there were; or how many occurrences of each span, by its number.

    Returns:
        For each span with calls one entry for each name (`CALLS`). Calls of other processes last
        as long as those of one of them, since these run side by side.
    """
    cost, _ = inside_costs(calls)
    took = np.maximum(end - calls["start_ns"].to_numpy() - np.nan_to_num(cost), 0.0)
    lacking = {_PROCESS: pl.String, f"{ATTRIBUTE}error": pl.String, f"{ATTRIBUTE}bytes": pl.Int64}
    known = calls.with_columns(
        pl.lit(None, dtype).alias(name)
        for name, dtype in lacking.items()
        if name not in calls.columns
    )
    table = known.select(
        "name",
        "thread",
        below=pl.Series(below),
        step=pl.Series(step),
        took=pl.Series(took),
        process=pl.col(_PROCESS).str.replace(r" \d+$", ""),
        error=pl.col(f"{ATTRIBUTE}error").is_not_null(),
        size=pl.col(f"{ATTRIBUTE}bytes"),
    )
    threads = pl.when(pl.col("process").is_null()).then(1).otherwise(pl.col("thread").n_unique())
    folded = table.group_by("below", "name", "process", maintain_order=True).agg(
        calls=pl.len().cast(pl.Float64),
        latency_ns=pl.col("took").sum() / threads.first(),
        errors=pl.col("error").sum().cast(pl.Float64),
        bytes=pl.when(pl.col("size").is_not_null().any())
        .then(pl.col("size").sum())
        .cast(pl.Float64),
        steps=pl.col("step").n_unique().cast(pl.Float64),
        thread=pl.first("thread"),
    )
    at = folded["below"].to_numpy()
    number = np.full(len(at), float(steps)) if isinstance(steps, int) else steps[at]
    each = pl.col("calls", "latency_ns", "errors", "bytes", "steps") / pl.Series(number)
    folded = folded.with_columns(each).with_columns(pl.col("steps").clip(0.0, 1.0))
    result: dict[int, list[dict[str, Any]]] = {}
    for row in folded.iter_rows(named=True):
        result.setdefault(row.pop("below"), []).append(row)
    return result


def of_workers(calls: SpanRows) -> NDArray[np.bool_]:
    """Return which calls the main threads of other processes made.

    Threads beside these wait for connections and queues, which says nothing of the work.
    """
    if _PROCESS not in calls.columns:
        return np.zeros(calls.height, bool)
    number = pl.col(_PROCESS).str.extract(r" (\d+)$").cast(pl.Int64)
    return calls.select((pl.col("thread") == -number).fill_null(value=False)).to_series().to_numpy()


def with_call_rows(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of a trace with the system calls below them as spans of their own.

    They stand for calls in all of the self time of the span around them, which is less by theirs;
    drawn they are in its longest gap. Where they lasted longer than that time, they are shortened.
    The states of each span's thread are brought to its latency, of which they are parts.

    Args:
        spans: Spans in the columns of `xsp.trace.SPAN_SCHEMA`, with the attribute `system_calls`.
    """
    attributes = spans["attributes"].struct.unnest()
    if "system_calls" not in attributes.columns:
        return spans
    # A span may stand for several occurrences; what it is charged is told of one.
    often = pl.Series([1] * spans.height)
    if "calls" in attributes.columns:
        often = attributes["calls"].fill_null(1)
    attributes = _in_proportion(attributes, spans["latency_ns"] / often)
    calls = attributes["system_calls"].cast(CALLS)
    spans = spans.with_columns(attributes=attributes.drop("system_calls").to_struct())
    found = (
        pl.DataFrame({"row": np.arange(spans.height), "calls": calls, "often": often})
        .filter(pl.col("calls").list.len() > 0)
        .explode("calls")
        .unnest("calls")
    )
    if not found.height:
        return spans
    at = found["row"].to_numpy()
    same = found["process"].is_null().to_numpy()
    took = (found["latency_ns"] * found["often"]).to_numpy()
    room = np.nan_to_num(spans["self_ns"].to_numpy().astype(np.float64))
    inside = np.bincount(at[same], weights=took[same], minlength=spans.height)
    shrunk = np.where(inside > room, room / np.maximum(inside, 1e-9), 1.0)
    took = np.where(same, took * shrunk[at], took)
    # A worker's calls last as long as the span around them at most.
    took = np.minimum(took, spans["latency_ns"].fill_null(np.inf).to_numpy()[at])
    less = np.bincount(at[same], weights=took[same], minlength=spans.height)
    own = pl.Series("self_ns", np.maximum(room - less, 0.0))
    spans = spans.with_columns(self_ns=pl.when(pl.col("self_ns").is_not_null()).then(own))
    whole = ~same | (shrunk[at] == 1.0)
    rows = _rows(found, spans[at], (took, whole), _drawn(spans, at, took, same))
    table = pl.concat([_plain(spans), _plain(rows)], how="diagonal_relaxed")
    names = [name for name in table.columns if name.startswith(ATTRIBUTE)]
    fields = table.select(pl.col(names).name.map(lambda n: n.removeprefix(ATTRIBUTE)))
    result = table.select(*SPAN_SCHEMA).with_columns(attributes=fields.to_struct())
    result = _with_paths(result, np.concatenate([np.full(spans.height, -1), at]))
    return result[_order(result, at, result["start_ns"].to_numpy()[spans.height :])]


def _in_proportion(attributes: pl.DataFrame, latency_ns: pl.Series) -> pl.DataFrame:
    """Return attributes with states of threads that add up to the latency without overhead."""
    states = [name for name in _STATES if name in attributes.columns]
    if len(states) < len(_STATES):
        return attributes
    sums = pl.sum_horizontal(states)
    factor = pl.when(sums > 0).then(pl.lit(latency_ns) / sums).otherwise(1.0)
    return attributes.with_columns(pl.col(states) * factor)


def _rows(
    found: pl.DataFrame,
    around: pl.DataFrame,
    lasted: tuple[Floats, NDArray[np.bool_]],
    drawn: tuple[Ints, Ints],
) -> pl.DataFrame:
    """Return a span for each sum of system calls.

    Args:
        found: Columns of `CALLS`, and how often the span around each occurred.
        around: The span around each.
        lasted: How long they lasted, and whether that was not shortened.
        drawn: From when to when they are drawn.
    """
    took, whole = lasted
    rows = found.select(
        pl.lit(Kind.SYSCALL.level.label).alias("level"),
        pl.lit(Kind.SYSCALL.value).alias("kind"),
        "name",
        around["span_id"].alias("parent_id"),
        pl.Series("start_ns", drawn[0]),
        pl.Series("end_ns", drawn[1]),
        pl.Series("latency_ns", took),
        pl.Series("self_ns", took),
        around["runs"].alias("runs"),
        # Calls of the span's own thread, whatever its number was in the run that they are from.
        pl.when(pl.col("process").is_null())
        .then(around["thread"])
        .otherwise(pl.lit(_BESIDE))
        .alias("thread"),
        attributes=pl.struct(
            calls=(pl.col("calls") * pl.col("often")).round().clip(1).cast(pl.Int64),
            calls_per_step="calls",
            steps_share="steps",
            failed_calls=pl.when(pl.col("errors") > 0).then("errors"),
            io_bytes="bytes",
            process_name="process",
            exact=pl.Series(whole),
            inexact=pl.when(~pl.Series(whole)).then(pl.lit([Inexact.INFERRED.value])),
        ),
    )
    lacking = [column for column in SPAN_SCHEMA if column not in rows.columns]
    rows = rows.with_columns(pl.lit(None, SPAN_SCHEMA[name]).alias(name) for name in lacking)
    return rows.select(*(pl.col(n).cast(SPAN_SCHEMA[n]) for n in SPAN_SCHEMA), "attributes")


def _drawn(
    spans: pl.DataFrame, at: Ints, took: Floats, same: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Return where calls are drawn: one after the other in the longest gap of the span around.

    Args:
        spans: All spans.
        at: The span around each call.
        took: How long each call lasts.
        same: Which calls the thread of the span made; others are drawn from its start on.
    """
    begins, ends = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    rows = {span: row for row, span in enumerate(spans["span_id"].to_list())}
    wanted = set(at.tolist())
    children: dict[int, list[tuple[int, int]]] = {row: [] for row in wanted}
    threads = spans["thread"].to_list()
    for row, above in enumerate(spans["parent_id"].to_list()):
        parent = rows.get(above, -1)
        if parent in wanted and threads[row] == threads[parent]:
            children[parent].append((int(begins[row]), int(ends[row])))
    gaps: dict[int, tuple[int, int]] = {}
    for row, taken in children.items():
        over = int(ends[row])
        free, now = (over, over), int(begins[row])
        for child_begin, child_end in [*sorted(taken), (over, over)]:
            if child_begin - now > free[1] - free[0]:
                free = now, child_begin
            now = max(now, child_end)
        gaps[row] = free
    lanes = [(row, own) for row, own in zip(at.tolist(), same.tolist(), strict=True)]
    whole: dict[tuple[int, bool], float] = {}
    for lane, each in zip(lanes, took.tolist(), strict=True):
        whole[lane] = whole.get(lane, 0.0) + each
    start, end = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    used: dict[tuple[int, bool], float] = {}
    for number, lane in enumerate(lanes):
        row, own = lane
        first, last = gaps[row] if own else (int(begins[row]), int(ends[row]))
        fits = min(1.0, (last - first) / max(whole[lane], 1.0))
        before = used.get(lane, 0.0)
        used[lane] = before + took[number] * fits
        start[number], end[number] = first + int(before), first + int(used[lane])
    return start, end


def _order(spans: pl.DataFrame, around: Ints, start: Ints) -> Ints:
    """Return the order of rows in which each new one follows the siblings that begin before it.

    Args:
        spans: Spans, then the new rows.
        around: Row of the span around each new one.
        start: When each new one begins.
    """
    count = spans.height - len(around)
    rows = {span: row for row, span in enumerate(spans["span_id"].to_list()[:count])}
    begins, threads = spans["start_ns"].to_numpy(), spans["thread"].to_list()
    siblings: dict[int, list[int]] = {int(row): [] for row in around}
    for row, above in enumerate(spans["parent_id"].to_list()[:count]):
        if (parent := rows.get(above, -1)) in siblings:
            siblings[parent].append(row)
    after = np.arange(spans.height)
    for number, row in enumerate(around.tolist()):
        own = threads[count + number]
        earlier = [
            each for each in siblings[row] if begins[each] <= start[number] and threads[each] == own
        ]
        after[count + number] = max(earlier, default=row)
    is_new = np.arange(spans.height) >= count
    return np.lexsort((begins, is_new, after))


def _with_paths(spans: pl.DataFrame, around: Ints) -> pl.DataFrame:
    """Return spans with paths and ids of those that have none, which lie in spans `around`."""
    rows = {span: row for row, span in enumerate(spans["span_id"].to_list())}
    parent = np.array(
        [-1 if above is None else rows[above] for above in spans["parent_id"].to_list()]
    )
    paths = path_names(spans["name"], parent, list(generations(parent)))
    new = pl.Series(around >= 0)
    made = paths.map_elements(
        lambda path: int.from_bytes(blake2b(path.encode(), digest_size=8).digest()) or 1, pl.UInt64
    )
    return spans.with_columns(
        path=pl.when(new).then(paths).otherwise("path"),
        span_id=pl.when(new).then(made).otherwise("span_id"),
    )


def _plain(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with a column for each attribute."""
    fields = spans["attributes"].struct.unnest()
    return spans.drop("attributes").hstack(
        [column.alias(f"{ATTRIBUTE}{column.name}") for column in fields]
    )
