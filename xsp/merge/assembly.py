"""Merging: from the runs of all rungs to one tree of latencies without overhead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.errors import MeasurementError
from xsp.evaluation import (
    Keys,
    Observations,
    Run,
    Structure,
    bootstrap_interval,
    nearest_run,
    observe,
    process_factors,
    ranks_of,
    structure_of,
    summarise,
    typical_run,
)
from xsp.level import Kind
from xsp.merge import check as finding
from xsp.merge.device_time import launch_rows
from xsp.merge.device_timeline import Executions, around_executions, place_executions
from xsp.merge.host_timeline import Timeline, rebuild
from xsp.merge.ladder import Cost, Ladder, Latencies, Step, climb, latencies
from xsp.problem import Problem
from xsp.provider import ATTRIBUTE
from xsp.trace import RUN_SCHEMA

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Merged:
    """One measurement as one tree.

    Attributes:
        spans: One row per span, see `docs/trace.md`; root first, parents before
            children, otherwise by measured start.
        problems: What a reader should know before trusting a number.
        rungs: One row per rung: `rung`, `runs`, `latency_ns` of the model there with
            its interval (`latency_low_ns`, `latency_high_ns`), `overhead_ns` over the
            pipeline rung, `spans`, and `share_ns` with `share_low_ns`, `share_high_ns`.
        runs: A typical run of each rung that records spans, see `docs/trace.md`.
    """

    spans: pl.DataFrame
    problems: tuple[Problem, ...]
    rungs: pl.DataFrame
    runs: pl.DataFrame


def merge(runs: Sequence[Run], *, statistic: str = "trimmed") -> Merged:
    """Return the tree that all runs of a measurement make together.

    Args:
        runs: In the order in which they were made.
        statistic: How runs are summarised: one of `xsp.evaluation.summary.STATISTICS`.

    Raises:
        MeasurementError: No run recorded any span.
        ValueError: `statistic` is unknown.
    """
    ranks_of(statistic)  # refuses an unknown one
    if not any(run.rows is not None and run.rung.timed for run in runs):
        raise MeasurementError(
            "nothing to merge: no run recorded a span; was the model called while profiling?"
        )
    factors, apart = process_factors(runs)
    seen = observe(runs)
    steps = climb(runs, seen, factors=factors)
    structure = structure_of(seen, typical_run(seen, steps[-1].members.tolist()))
    ladder = Ladder(steps, structure, seen=seen, factors=factors)
    costs = ladder.costs()
    found = latencies(ladder, costs, structure=structure, statistic=statistic)
    evidence = finding.Evidence(runs, seen, steps, costs, structure, found)
    times = _timeline(structure, found)
    detail = [i for i, run in enumerate(seen.runs) if run.rung.detail]
    attributes = _attributes(structure, seen, detail, found, times)
    deepest = _deepest(ladder, found, statistic)
    if not np.all(np.isnan(deepest["device_ns"])):
        wait = _wait(structure, steps, statistic)
        attributes = attributes.struct.unnest().with_columns(wait).to_struct("attributes")
    spans = _spans(structure, found, times, deepest, attributes)
    return Merged(
        spans,
        finding.problems(evidence, apart),
        _rungs(runs, steps, costs, statistic),
        _exemplars(steps, seen, statistic),
    )


def _timeline(structure: Structure, found: Latencies) -> Timeline:
    """Return the timeline that the latencies make: first the host's, then that of devices."""
    start, end, latency = structure.start_ns, structure.end_ns, found.value_ns
    lanes = structure.rows.select(
        pl.struct("thread", "device", "stream").rank("dense").cast(pl.Int64)
    )
    lane = lanes.to_series().to_numpy()
    host = np.flatnonzero(structure.host)
    new = np.cumsum(structure.host) - 1
    above = structure.parent[host]
    drawn = rebuild(
        np.where(above < 0, -1, new[above]),
        lane[host],
        start_ns=start[host],
        end_ns=end[host],
        latency_ns=latency[host],
    )
    if len(host) == len(start):
        return drawn
    line = drawn.spread(host, len(start))
    line = place_executions(line, _executions(structure, lane, latency), start_ns=start, end_ns=end)
    return around_executions(line, structure.parent, structure.derived & ~structure.host)


def _executions(structure: Structure, lane: Ints, latency: Floats) -> Executions:
    """Return what ran on devices, each with the host's row that it follows."""
    rows = np.flatnonzero(~structure.host)
    launch = launch_rows(structure.rows)[rows]
    anchor = np.where(launch < 0, structure.parent[rows], launch)
    while np.any(astray := ~structure.host[anchor]):
        anchor = np.where(astray, structure.parent[anchor], anchor)
    waits = (structure.rows["kind"].gather(rows) == Kind.SYNC.value).to_numpy()
    waits |= structure.derived[rows]  # of what a graph replays: on no stream of its own
    measured = (structure.end_ns - structure.start_ns)[rows]
    length = np.rint(np.where(np.isnan(latency[rows]), measured, latency[rows])).astype(np.int64)
    return Executions(rows, anchor, launch >= 0, np.where(waits, -1, lane[rows]), length)


def _spans(
    structure: Structure,
    found: Latencies,
    times: Timeline,
    deepest: Mapping[str, Floats],
    attributes: pl.Series,
) -> pl.DataFrame:
    columns = {
        **structure.identity(),
        "start_ns": times.start_ns,
        "end_ns": times.end_ns,
        "latency_ns": found.value_ns,
        "latency_low_ns": found.low_ns,
        "latency_high_ns": found.high_ns,
        "self_ns": _self_times(structure, found.value_ns, deepest["device_ns"]),
        **deepest,
        "measured_start_ns": structure.start_ns,
        "measured_end_ns": structure.end_ns,
        "runs": found.runs,
        **structure.place(),
        "attributes": attributes,
    }
    return pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))


def _deepest(ladder: Ladder, found: Latencies, statistic: str) -> dict[str, Floats]:
    """Return what the deepest rung says of each span: what was removed, and device time."""
    step = ladder.steps[-1]
    device = ladder.device_times(step)
    return {
        "overhead_ns": summarise(ladder.durations(step), statistic) - found.value_ns,
        "device_ns": np.full(len(found.value_ns), np.nan)
        if device is None
        else summarise(device, statistic),
    }


def _wait(structure: Structure, steps: Sequence[Step], statistic: str) -> pl.Series:
    """Return what of the root's latency was nothing but waiting for devices at its end."""
    step = _base(steps)
    wait = float(summarise((step.root_ns - step.host_ns)[:, None], statistic)[0])
    return pl.Series("device_wait_ns", [wait] + [None] * (len(structure.key) - 1), pl.Float64)


def _base(steps: Sequence[Step]) -> Step:
    """Return the rung that the root's latency is taken from."""
    return next((step for step in steps if step.order == 0), steps[0])


def _self_times(structure: Structure, latency: Floats, device: Floats) -> Floats:
    """Return each span's latency less that of its children on its own thread.

    On a device, where children overlap: less the time in which any of them was at work.
    """
    thread = structure.rows["thread"].fill_null(-1).to_numpy()
    parent, host = structure.parent, structure.host
    child = np.flatnonzero((parent >= 0) & host & (thread == thread[parent]))
    known = np.nan_to_num(latency[child])
    inside = np.bincount(parent[child], weights=known, minlength=len(parent))
    inside = np.where(structure.derived & ~host, np.nan_to_num(device), inside)
    own: Floats = np.maximum(latency - inside, 0.0)
    return own


def _attributes(
    structure: Structure,
    seen: Observations,
    detail: Sequence[int],
    found: Latencies,
    times: Timeline,
) -> pl.Series:
    """Return what else is known of each span: recorded, taken from detail runs, or merged."""
    frame = _attribute_columns(structure.rows, structure.key)
    for run in detail:
        rows = seen.runs[run].rows
        assert rows is not None
        more = _attribute_columns(rows, seen.key[seen.of(run)])
        frame = _filled(frame, more)
    frame = frame.with_columns(
        exact=pl.Series(found.exact), scaled_ns=pl.Series(times.scaled_ns).fill_nan(None)
    )
    return frame.drop("key").to_struct("attributes")


def _attribute_columns(rows: pl.DataFrame, key: Keys) -> pl.DataFrame:
    names = [name for name in rows.columns if name.startswith(ATTRIBUTE)]
    columns = [pl.col(name).alias(name.removeprefix(ATTRIBUTE)) for name in names]
    return rows.select(pl.Series("key", key), *columns)


def _filled(frame: pl.DataFrame, more: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with what it lacks taken from the rows of the same paths."""
    joined = frame.join(more, on="key", how="left", maintain_order="left", suffix="\0")
    both = [name for name in more.columns if name != "key" and name in frame.columns]
    filled = [pl.coalesce(name, f"{name}\0").alias(name) for name in both]
    return joined.with_columns(filled).drop(f"{name}\0" for name in both)


def _rungs(
    runs: Sequence[Run], steps: Sequence[Step], costs: Sequence[Cost], statistic: str
) -> pl.DataFrame:
    without = float(summarise(_base(steps).root_ns[:, None], statistic)[0])
    rows = []
    for step, cost in zip(steps, costs, strict=True):
        latency = float(summarise(step.root_ns[:, None], statistic)[0])
        low, high = bootstrap_interval(step.root_ns[:, None], statistic)
        heights = [run.rows.height for run in step.runs if run.rows is not None]
        share = cost.shares
        rows.append(
            {
                "rung": step.name,
                "runs": len(step.runs),
                "latency_ns": latency,
                "latency_low_ns": float(low[0]),
                "latency_high_ns": float(high[0]),
                "overhead_ns": latency - without,
                "spans": int(np.median(heights)) if heights else 0,
                "share_ns": share.pooled_ns if share else float("nan"),
                "share_low_ns": share.low_ns if share else float("nan"),
                "share_high_ns": share.high_ns if share else float("nan"),
            }
        )
    untimed = Counter(run.rung.name for run in runs if not run.rung.timed)
    rows += [{"rung": name, "runs": count} for name, count in untimed.items()]
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(
        pl.col(pl.Float64).fill_nan(None)
    )


def _exemplars(steps: Sequence[Step], seen: Observations, statistic: str) -> pl.DataFrame:
    """Return for each rung with spans the run that is nearest to what its runs say together."""
    frames = []
    for step in steps:
        if len(step.members):
            latency = summarise(step.root_ns[:, None], statistic)
            run = nearest_run(seen, step.members.tolist(), np.abs(step.root_ns - latency))
            frames.append(_as_measured(step.name, seen, run))
    return pl.concat(frames)


def _as_measured(rung: str, seen: Observations, run: int) -> pl.DataFrame:
    """Return the spans of one run in the columns of `RUN_SCHEMA`."""
    structure = structure_of(seen, run)
    columns = {
        "rung": rung,
        "run_latency_ns": seen.runs[run].latency_ns,
        **structure.identity(),
        "start_ns": structure.start_ns,
        "end_ns": structure.end_ns,
        **structure.place(),
    }
    return pl.DataFrame(columns).select(pl.col(n).cast(t) for n, t in RUN_SCHEMA.items())
