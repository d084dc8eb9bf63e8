"""Assembles the tree of latencies without overhead from the runs of all passes.

The ladder (`ladder`) says how long each span took on each pass; recording costs
(`recording_cost`) are estimated and taken out of the latencies (`latency`); the timelines of the
host and of devices are drawn anew (`host_timeline`, `device_timeline`), and everything is checked
(`check`). Here the results are put together as tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.errors import MeasurementError
from xsp.inexact import lists_of
from xsp.level import Kind
from xsp.matching import (
    Keys,
    Run,
    covered_below,
    covered_part,
    nearest,
    nearest_run,
    ranks_of,
    run_spans,
    summarize,
)
from xsp.provider import ATTRIBUTE
from xsp.reading.merge.check import find_warnings
from xsp.reading.merge.device_time import launch_rows
from xsp.reading.merge.device_timeline import Activities, around_activities, place_activities
from xsp.reading.merge.host_timeline import Timeline, rebuild
from xsp.reading.merge.inside_cost import inside_cost_of_pass
from xsp.reading.merge.ladder import Ladder, PassRuns, climb
from xsp.reading.merge.latency import (
    OPERATORS,
    Latencies,
    half_of_interval,
    inexact_codes,
    latencies,
    side_by_side,
)
from xsp.reading.merge.recording_cost import PassCost, recording_costs
from xsp.reading.merge.step_work import step_work
from xsp.trace import RUN_SCHEMA
from xsp.warning import TraceWarning

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Merged:
    """One measurement as one tree.

    Attributes:
        spans: One row per span, see `docs/trace.md`; root first, parents before
            children, otherwise by measured start.
        warnings: What a reader should know before trusting a number.
        passes: One row per pass: `pass`, `runs`, `latency_ns` of the model on that pass with
            its interval (`latency_low_ns`, `latency_high_ns`), `overhead_ns` over the
            region pass, `spans`, and the cost of recording one span: `cost_per_span_ns`
            with its interval (`cost_per_span_low_ns`, `cost_per_span_high_ns`), and by how
            much recording a span makes the span itself longer (`inside_cost_ns`).
        typical_runs: A typical run of each pass that records spans, see `docs/trace.md`.
        processes: How many processes the intervals compare; 1 where they hold within one alone.
        steps: How long each step of another tool's recording took, and what devices did in it
            (`step_work`); None for a single step, and where xsp measured.
    """

    spans: pl.DataFrame
    warnings: tuple[TraceWarning, ...]
    passes: pl.DataFrame
    typical_runs: pl.DataFrame
    processes: int
    steps: Mapping[str, Any] | None


def merge(runs: Sequence[Run], *, statistic: str = "trimmed") -> Merged:
    """Return one tree of latencies, made of all runs of a measurement.

    Args:
        runs: In the order in which they were made.
        statistic: How runs are summarized: one of `xsp.matching.STATISTICS`.

    Raises:
        MeasurementError: No run recorded any span.
        ValueError: `statistic` is unknown.
    """
    ranks_of(statistic)  # refuses an unknown statistic
    if not any(run.rows is not None and run.pass_.timed for run in runs):
        raise MeasurementError(
            "nothing to merge: no run recorded a span; was the model called while profiling?"
        )
    ladder = climb(runs)
    costs = recording_costs(ladder)
    found = latencies(ladder, costs, statistic)
    untimed = Counter(run.pass_.name for run in runs if not run.pass_.timed)
    rows = [
        _pass(ladder, pass_, cost, statistic)
        for pass_, cost in zip(ladder.passes, costs, strict=True)
    ]
    rows += [{"pass": name, "runs": count} for name, count in untimed.items()]
    passes = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        pl.col(pl.Float64).fill_nan(None)
    )
    return Merged(
        _spans(ladder, found, statistic),
        find_warnings(ladder, costs, found),
        passes,
        _typical_runs(ladder, statistic),
        max(len(ladder.speeds.factors), 1),
        step_work(ladder.seen, ladder.deepest.members.tolist()) if ladder.foreign else None,
    )


def _spans(ladder: Ladder, found: Latencies, statistic: str) -> pl.DataFrame:
    spans = ladder.spans
    times = _timeline(ladder, found)
    # Overhead and device time of each span on the deepest pass.
    # Of what another tool recorded the overhead is not known.
    device = ladder.device_times(ladder.deepest)
    unknown = np.full(len(found.value_ns), np.nan)
    measured = unknown if ladder.foreign else summarize(ladder.durations(ladder.deepest), statistic)
    deepest = {
        "overhead_ns": measured - found.value_ns,
        "device_ns": unknown if device is None else summarize(device, statistic),
    }
    columns = {
        **spans.identity(),
        "start_ns": times.start_ns,
        "end_ns": times.end_ns,
        "latency_ns": found.value_ns,
        "latency_low_ns": found.low_ns,
        "latency_high_ns": found.high_ns,
        "self_ns": _self_times(ladder, found, deepest["device_ns"], times),
        **deepest,
        "measured_start_ns": spans.start_ns,
        "measured_end_ns": spans.end_ns,
        "runs": found.runs,
        **spans.place(),
    }
    attributes = _attributes(ladder, found, times)
    if not (ladder.foreign or np.all(np.isnan(deepest["device_ns"]))):
        # For how long the host only waited for devices at the end of the root's latency.
        wait = _of_model(ladder.outer.root_ns - ladder.outer.host_ns, statistic)
        device_wait = pl.Series([wait] + [None] * (len(ladder.spans.key) - 1), dtype=pl.Float64)
        attributes = attributes.with_columns(device_wait_ns=device_wait)
    frame = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    return frame.with_columns(attributes=attributes.to_struct())


def _timeline(ladder: Ladder, found: Latencies) -> Timeline:
    """Return the timeline on which spans last as long as their latencies, devices included."""
    spans = ladder.spans
    lane = spans.lane()
    host = np.flatnonzero(spans.host)
    place = np.cumsum(spans.host) - 1
    above = spans.parent[host]
    drawn = rebuild(
        np.where(above < 0, -1, place[above]),
        lane[host],
        start_ns=spans.start_ns[host],
        end_ns=spans.end_ns[host],
        latency_ns=found.value_ns[host],
        gathering=spans.gathering()[host],
    )
    if len(host) == len(lane):
        return drawn
    line = drawn.spread(host, len(lane))
    done = _activities(ladder, lane, found.value_ns)
    line = place_activities(line, done, start_ns=spans.start_ns, end_ns=spans.end_ns)
    return around_activities(line, spans.parent, spans.derived & ~spans.host)


def _activities(ladder: Ladder, lane: Ints, latency: Floats) -> Activities:
    """Return the device activities of the shown run, each with the host's row that it follows."""
    spans = ladder.spans
    rows = np.flatnonzero(~spans.host)
    launch = launch_rows(ladder.seen.rows[ladder.seen.of(ladder.shown)])[rows]
    cause = np.where(launch < 0, spans.parent[rows], launch)
    cause = nearest(spans.parent, cause, spans.host)
    unqueued = (spans.rows["kind"].gather(rows) == Kind.SYNC.value).to_numpy()
    unqueued |= spans.derived[rows]  # rows derived from a CUDA graph are on no stream of their own
    measured = (spans.end_ns - spans.start_ns)[rows]
    length = np.rint(np.where(np.isnan(latency[rows]), measured, latency[rows])).astype(np.int64)
    return Activities(rows, cause, launch >= 0, np.where(unqueued, -1, lane[rows]), length)


def _self_times(ladder: Ladder, found: Latencies, device: Floats, times: Timeline) -> Floats:
    """Return each span's latency less the latencies of its children on its own thread.

    Children of a derived span on a device overlap: less the device time of the span. So do those
    of spans that gather what ran on several threads: less the time that any of them covers.
    """
    spans = ladder.spans
    child = side_by_side(spans)
    known = np.nan_to_num(found.value_ns[child])
    inside = np.bincount(spans.parent[child], weights=known, minlength=len(device))
    inside = np.where(spans.derived & ~spans.host, np.nan_to_num(device), inside)
    gathers = spans.gathering()
    if gathers.any():
        below = np.flatnonzero((spans.parent >= 0) & spans.host)
        part = covered_part(spans.parent[below], below, times.start_ns, times.end_ns)
        inside = np.where(gathers, found.value_ns * part, inside)
    return np.maximum(found.value_ns - inside, 0.0)


def _operator_times(ladder: Ladder, found: Latencies, times: Timeline) -> pl.Series:
    """Return for how long operators run in each span that was made of them."""
    spans = ladder.spans
    operators = np.flatnonzero((spans.rows["kind"] == Kind.OP.value).to_numpy() & spans.host)
    busy = covered_below(spans.parent, operators, (times.start_ns, times.end_ns))
    part = busy / np.maximum(times.end_ns - times.start_ns, 1)
    return pl.Series(found.value_ns * np.minimum(part, 1.0)).fill_nan(None)


def _attributes(ladder: Ladder, found: Latencies, times: Timeline) -> pl.DataFrame:
    """Return the attributes of each span: those recorded, of untimed runs too, and those merged."""
    seen, spans = ladder.seen, ladder.spans
    frame = _attribute_columns(spans.rows, spans.key)
    for i, run in enumerate(seen.runs):
        if not run.pass_.timed and run.rows is not None:
            # The frame with nulls filled, and columns added, from rows with equal keys.
            more = _attribute_columns(run.rows, seen.key[seen.of(i)])
            joined = frame.join(more, on="key", how="left", maintain_order="left", suffix="\0")
            both = [name for name in more.columns if name != "key" and name in frame.columns]
            filled = [pl.coalesce(name, f"{name}\0").alias(name) for name in both]
            frame = joined.with_columns(filled).drop(f"{name}\0" for name in both)
    name = OPERATORS.removeprefix(ATTRIBUTE)
    if name in frame.columns:  # measured, with the cost of recording in it
        made = pl.when(pl.col(name).is_not_null()).then(_operator_times(ladder, found, times))
        frame = frame.with_columns(made.alias(name))
    scaled = pl.Series(times.scaled_ns).fill_nan(None)
    codes = inexact_codes(ladder, found)
    known = pl.Series(~np.isnan(found.value_ns))
    exact = pl.when(known).then(pl.Series(codes == 0)).alias("exact")
    return frame.drop("key").with_columns(exact, lists_of(codes), scaled_ns=scaled)


def _attribute_columns(rows: pl.DataFrame, key: Keys) -> pl.DataFrame:
    names = [name for name in rows.columns if name.startswith(ATTRIBUTE)]
    columns = [pl.col(name).alias(name.removeprefix(ATTRIBUTE)) for name in names]
    return rows.select(pl.Series("key", key), *columns)


def _pass(ladder: Ladder, pass_: PassRuns, cost: PassCost, statistic: str) -> dict[str, Any]:
    latency = _of_model(pass_.root_ns, statistic)
    root = pass_.root_ns[:, None]
    half = float(half_of_interval(ladder, pass_, root, statistic, host=np.array([True]))[0])
    heights = np.diff(ladder.seen.first)[pass_.members]
    per_span = cost.per_span
    return {
        "pass": pass_.name,
        "runs": len(pass_.root_ns),
        "latency_ns": latency,
        "latency_low_ns": latency - half,
        "latency_high_ns": latency + half,
        "overhead_ns": float("nan")
        if ladder.foreign
        else latency - _of_model(ladder.outer.root_ns, statistic),
        "spans": int(np.median(heights)) if len(heights) else 0,
        "cost_per_span_ns": per_span.pooled_ns if per_span else float("nan"),
        "cost_per_span_low_ns": per_span.low_ns if per_span else float("nan"),
        "cost_per_span_high_ns": per_span.high_ns if per_span else float("nan"),
        "inside_cost_ns": inside_cost_of_pass(ladder, pass_),
    }


def _of_model(values: Floats, statistic: str) -> float:
    """Return the summary of one value per run."""
    return float(summarize(values[:, None], statistic)[0])


def _typical_runs(ladder: Ladder, statistic: str) -> pl.DataFrame:
    """Return for each pass with spans its typical run nearest to the pass's latency."""
    chosen: dict[str, int] = {}
    for pass_ in ladder.passes:
        if len(pass_.members):
            apart = np.abs(pass_.root_ns - _of_model(pass_.root_ns, statistic))
            chosen[pass_.name] = nearest_run(ladder.seen, pass_.members.tolist(), apart)
    watched = [i for i, run in enumerate(ladder.seen.runs) if run.pass_.system]
    if watched:  # the one in which most was recorded, with every system call
        heights = np.diff(ladder.seen.first)
        by_depth = {i: (len(ladder.seen.runs[i].pass_.kinds), heights[i]) for i in watched}
        chosen[Kind.SYSCALL.value] = max(watched, key=lambda i: by_depth[i])
    frames = []
    for name, run in chosen.items():
        # The spans of one run in the columns of `RUN_SCHEMA`.
        spans = run_spans(ladder.seen, run)
        columns = {
            "pass": name,
            "run_latency_ns": ladder.seen.runs[run].latency_ns,
            **spans.identity(),
            "start_ns": spans.start_ns,
            "end_ns": spans.end_ns,
            **spans.place(),
        }
        as_measured = pl.DataFrame(columns).select(pl.col(n).cast(t) for n, t in RUN_SCHEMA.items())
        frames.append(as_measured)
    return pl.concat(frames)
