"""Averages: the trace of a group that calls its model unlike numbers of times in, an average out.

A group's trace shows one evaluation. Where the number of calls varies, that is one of many, and
what comes once per call is there as often as in that one. How often it comes on average is told by
the recorded runs: spans of one kind and name below like spans are counted in each of them, and the
straight line through these counts is read at the average number of calls.

    calls of the model      5   9   13     average 8.5
    forward                 5   9   13     8.5 times
    forward/fc              5   9   13     8.5 times
    backward                1   1    1     once
    backward/Accumulate     4   8   12     7.5 times
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import Run, generations, lineage_keys
from xsp.trace import Trace, gathering_spans, parent_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

# Columns and attributes of times that are sums where a span stands for several.
SUMMED = (
    "latency_ns", "latency_low_ns", "latency_high_ns", "self_ns", "overhead_ns", "device_ns",
)  # fmt: skip
SUMMED_ATTRIBUTES = ("operators_ns", "scaled_ns")


@dataclass(frozen=True, slots=True)
class Average:
    """An average evaluation of a group.

    Attributes:
        trace: The trace of the group, its times being sums over an average evaluation. What comes
            once per evaluation has the latency that it has in the group's trace.
        like: A number for each span of the trace, equal for spans of one kind and name below like
            spans.
        often: How often each span comes in an average evaluation, `[spans]`; those that are like
            it come as often.
    """

    trace: Trace
    like: Ints
    often: Floats

    def calls(self, evaluations: int) -> Ints:
        """Return how often each span came in so many evaluations, once at least.

        Like spans share among them, evenly, how often they came together.
        """
        number = np.bincount(self.like)
        sums = np.rint(np.bincount(self.like, self.often) * evaluations).astype(np.int64)
        order = np.argsort(self.like, kind="stable")
        place = np.empty(len(order), dtype=np.int64)  # of each span among those that are like it
        place[order] = np.arange(len(order)) - np.repeat(np.cumsum(number) - number, number)
        whole, parts = sums[self.like], number[self.like]
        return np.maximum((place + 1) * whole // parts - place * whole // parts, 1)

    def in_calls(self, evaluations: int) -> tuple[Trace, Ints]:
        """Return the trace with times in proportion to how often each span came, and how often.

        Args:
            evaluations: How many evaluations the spans stand for.
        """
        calls = self.calls(evaluations)
        part = calls / np.where(self.often > 0, self.often * evaluations, calls)
        return Trace(_multiplied(self.trace.spans, part), self.trace.metadata), calls


def average_evaluation(trace: Trace, runs: Sequence[Run], model_calls: float) -> Average:
    """Return an average evaluation of a group whose evaluations call the model unlike often.

    Args:
        trace: The trace of the group, which shows one of the runs.
        runs: The runs of the group.
        model_calls: How often evaluations of the group call the model on average.
    """
    deepest = max(run.rung.order for run in runs if run.rung.timed)
    known = [
        (run.model_calls, run.rows)
        for run in runs
        if run.rung.timed and run.rung.order == deepest and run.rows is not None
    ]
    spans, parent = trace.spans, parent_rows(trace.spans)
    frames = [rows.select("kind", "name") for _, rows in known]
    parents = [rows["parent"].to_numpy() for _, rows in known]
    keys, *others = _lineages([spans.select("kind", "name"), *frames], [parent, *parents])
    different, like = np.unique(keys, return_inverse=True)
    shown = np.bincount(like).astype(np.float64)
    counts = np.stack([_counts(each, different) for each in others])
    calls = np.array([number for number, _ in known], dtype=np.float64)
    often = (_at(model_calls, calls, counts) / shown)[like]
    times = _with_times(spans, parent, often)
    return Average(Trace(times, trace.metadata), like, often)


def with_mean_latency(facts: Mapping[str, Any], mean_ns: float) -> dict[str, Any]:
    """Return what is known of a group with the mean latency of all its evaluations, however long.

    Args:
        facts: What is known of the group (`summary.facts`).
        mean_ns: The mean, without what first calls took more than the others.
    """
    latencies = {name: facts[name] for name in ("latency_ns", "latency_low_ns", "latency_high_ns")}
    factor = mean_ns / latencies["latency_ns"] if latencies["latency_ns"] else 1.0
    scaled = {name: None if ns is None else ns * factor for name, ns in latencies.items()}
    return {**facts, **scaled}


def _lineages(frames: Sequence[pl.DataFrame], parents: Sequence[Ints]) -> list[Keys]:
    """Return a key for each row, equal where kinds and names are, from the root to the row.

    Args:
        frames: Columns `kind` and `name`, root first.
        parents: Row of the parent of each row of a frame, -1 for its root.
    """
    result = []
    for frame, parent in zip(frames, parents, strict=True):
        label = pl.concat_str(pl.col("kind").cast(pl.String), "name", separator="\0")
        own = frame.select(label.hash()).to_series().to_numpy()
        result.append(lineage_keys(own, parent, list(generations(parent))))
    return result


def _counts(keys: Keys, different: Keys) -> Floats:
    """Return how many of the keys equal each of some different ones, which are sorted."""
    place = np.minimum(np.searchsorted(different, keys), len(different) - 1)
    equal = different[place] == keys
    return np.bincount(place[equal], minlength=len(different)).astype(np.float64)


def _at(average: float, calls: Floats, counts: Floats) -> Floats:
    """Return how often spans come in evaluations with an average number of calls.

    Where all runs have as many calls, what is there at least as often comes per call, if these are
    more than one; of runs of a single call nothing tells what does, and counts are theirs.

    Args:
        average: The average number of calls.
        calls: How often each run called the model, `[runs]`.
        counts: How often spans came in each run, `[runs, likes]`.

    >>> _at(8.5, np.array([5.0, 13.0]), np.array([[5.0, 1.0, 4.0], [13.0, 1.0, 12.0]]))
    array([8.5, 1. , 7.5])
    """
    middle, usual = calls.mean(), counts.mean(axis=0)
    apart = calls - middle
    if apart.any():
        slope = apart @ counts / (apart @ apart)
    else:
        slope = np.where((usual >= middle) & (middle > 1.0), usual / middle, 0.0)
    result: Floats = np.maximum(usual + slope * (average - middle), 0.0)
    return result


def _multiplied(spans: pl.DataFrame, often: Floats) -> pl.DataFrame:
    """Return spans whose times are multiplied."""
    told = [name for name in SUMMED_ATTRIBUTES if name in spans["attributes"].struct.fields]
    fields = pl.col("attributes").struct.with_fields(pl.field(told) * pl.Series(often))
    return spans.with_columns(
        *(pl.col(name) * pl.Series(often) for name in SUMMED), fields if told else "attributes"
    )


def _drawn(spans: pl.DataFrame, parent: Ints, often: Floats) -> list[pl.Series]:
    """Return starts and ends of spans that are drawn shorter, or not, within their parents.

    A span that comes more often than its parent is drawn as long as before, within that.
    """
    start, end = (spans[name].to_numpy().astype(np.float64) for name in ("start_ns", "end_ns"))
    begins, scale = start.copy(), np.ones(len(start))
    for rows in list(generations(parent))[1:]:
        above = parent[rows]
        begins[rows] = begins[above] + (start[rows] - start[above]) * scale[above]
        scale[rows] = np.minimum(often[rows], scale[above])
    ends = begins + (end - start) * scale
    named = (("start_ns", begins), ("end_ns", ends))
    return [pl.Series(name, np.floor(times).astype(np.int64)) for name, times in named]


def _with_times(spans: pl.DataFrame, parent: Ints, often: Floats) -> pl.DataFrame:
    """Return spans whose times are sums over how often they come, and own times as these leave."""
    times = _multiplied(spans, often).with_columns(_drawn(spans, parent, often))
    thread = spans["thread"].fill_null(-1).to_numpy()
    on_host = spans["device"].is_null().to_numpy()
    child = np.flatnonzero((parent >= 0) & on_host & (thread == thread[parent]))
    above = parent[child]
    inside = np.bincount(
        above, times["latency_ns"].fill_null(0.0).to_numpy()[child], minlength=len(parent)
    )
    unlike = np.zeros(len(parent), dtype=bool)
    unlike[above[often[child] != often[above]]] = True
    unlike &= ~gathering_spans(spans, parent) & on_host
    left = (pl.col("latency_ns") - pl.Series(inside)).clip(lower_bound=0.0)
    return times.with_columns(self_ns=pl.when(pl.Series(unlike)).then(left).otherwise("self_ns"))
