"""Divides the latency of a trace along the critical path, with the possible gain of each part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.dataflow.graph import graph_runs
from xsp.answer.analyses.device.activity import COMMUNICATION
from xsp.answer.analyses.device.path.graph import DATA, EXECUTOR, OWN, QUEUE, Graph, graph_of
from xsp.answer.analyses.device.path.longest_path import (
    Points,
    condensed,
    critical,
    in_order,
    reached,
)
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints
from xsp.trace import Trace

_COLUMNS = {
    "kind": "Kind of span on the path, `communication`, or what lies between spans: `latency`, "
    "`queue`, `thread`, `data` or `executor`.",
    "name": "Name of the span, or of that in front of which it lies; null for all of the kind.",
    "count": "How many spans.",
    "time_ns": "Their self time on the path: the kinds sum to the whole.",
    "share_pct": "As a share of the whole.",
    "gain_ns": "How much sooner all would end if none of it took time anywhere; null for names "
    "after the first twelve.",
    "gain_pct": "As a share of the whole.",
}
_KINDS = (*(kind.value for kind in Kind), "communication", "queue", "latency", "thread", "data",
    "executor")  # fmt: skip
_COMMUNICATION, _QUEUE, _LATENCY, _THREAD, _DATA, _EXECUTOR = range(len(Kind), len(_KINDS))
_NAMES = 12  # for each of which the path is sought once more


@analysis("What determines the latency, and what would be gained without it?", _COLUMNS)
def critical_path(trace: Trace) -> pl.DataFrame:
    """Return the longest path through a trace, by kind and name, those with most time first.

    Args:
        trace: Any trace; with launches and work of devices the path leads through these.
    """
    tree = Tree.of(trace)
    graph = graph_of(tree, graph_runs(trace))
    points, _ = in_order(graph.points)
    on_path, waited = critical(points, len(points.time) - 1)
    labels = _Labels.of(tree, graph)
    path = pl.DataFrame({
        "kind": np.concatenate((labels.of_way[on_path], labels.of_delay[waited])),
        "name": np.concatenate((labels.name[on_path], labels.name[waited])),
        "row": np.concatenate((graph.row[on_path], graph.row[waited])),
        "time_ns": np.concatenate((points.weight[on_path], points.delay[waited])),
    })  # fmt: skip
    rows = _rows(path.filter(pl.col("time_ns") > 0), labels.names)
    gains = pl.Series(_gains(points, labels, rows), dtype=pl.Float64).fill_nan(None)
    whole = int(points.time[-1] - points.time[0])
    return rows.with_columns(
        kind=pl.col("kind").replace_strict(range(len(_KINDS)), _KINDS, return_dtype=pl.String),
        name=labels.names.gather(rows["name"]),
        share_pct=100 * pl.col("time_ns") / whole,
        gain_ns=gains,
        gain_pct=100 * gains / whole,
    ).select(*_COLUMNS)


@dataclass(frozen=True, slots=True)
class _Labels:
    """What the time before each point is called.

    Attributes:
        of_way: Position in `_KINDS` of the kind of the way to each point.
        of_delay: That of the delay where it waits.
        name: Position in `names` of the name of the span that owns either.
        names: Names of spans, each once.
    """

    of_way: Ints
    of_delay: Ints
    name: Ints
    names: pl.Series

    @classmethod
    def of(cls, tree: Tree, graph: Graph) -> _Labels:
        """Return the labels of a graph's points."""
        row = np.maximum(graph.row, 0)
        names = tree.spans["name"].unique(maintain_order=True)
        numbers = pl.int_range(len(names), eager=True)
        name = tree.spans["name"].replace_strict(names, numbers).to_numpy()
        kind = tree.spans["kind"].cast(pl.Enum(_KINDS)).to_physical()
        communicates = names.str.contains(COMMUNICATION).to_numpy()[name]
        communicates |= tree.attribute("collective").is_not_null().to_numpy()
        own = np.where(tree.is_of(Kind.KERNEL) & communicates, _COMMUNICATION, kind.to_numpy())
        works = tree.is_of(*DEVICE_ACTIVITIES)
        between = np.where(graph.what == QUEUE, _QUEUE, _EXECUTOR)
        waited = np.where(works, _LATENCY, _THREAD)[row]
        return cls(
            np.where(np.isin(graph.what, (QUEUE, EXECUTOR)), between, own[row]),
            np.where(graph.what == DATA, _DATA, waited),
            name[row],
            names,
        )


def _rows(path: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """Return a row for each kind, then one for each name, each of them with most time first."""
    spans = path.group_by("kind", "row").agg(pl.col("name").first(), pl.col("time_ns").sum())
    sums = (pl.len().cast(pl.Int64).alias("count"), pl.col("time_ns").sum())
    named = spans.group_by("kind", "name").agg(*sums)
    kinds = spans.group_by("kind").agg(*sums).with_columns(name=pl.lit(None, pl.Int64))
    each = (
        rows.with_columns(text=names.gather(rows["name"]))
        .sort("time_ns", "kind", "text", descending=[True, False, False])
        .drop("text")
        for rows in (kinds.select(named.columns), named)
    )
    return pl.concat(each)


def _gains(points: Points, labels: _Labels, rows: pl.DataFrame) -> Floats:
    """Return how much sooner the last point is reached without the time of each row.

    NaN for names that are not among those with most time.
    """
    named = rows["name"].is_not_null().to_numpy()
    chosen = np.flatnonzero(~named | (np.cumsum(named) <= _NAMES))
    some, leads = condensed(points)
    times = []
    waits = points.delay * (points.cross >= 0)
    for kind, values in ((labels.of_way, points.weight), (labels.of_delay, waits)):
        whole = np.bincount(leads, values, len(some.time)).astype(np.float64)
        left = np.repeat(whole[:, None], len(chosen) + 1, 1)
        for case in _cases(kind, labels, rows[chosen]):
            at = np.flatnonzero((case > 0) & (values > 0))
            cells = leads[at] * left.shape[1] + case[at]
            left -= np.bincount(cells, values[at], left.size).reshape(left.shape)
        times.append(left)
    last = reached(*in_order(some), *times)[-1]
    gains = np.full(rows.height, np.nan)
    gains[chosen] = last[0] - last[1:]
    return gains


def _cases(kind: Ints, labels: _Labels, chosen: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return in which case each point's kind takes no time, and its name; 0 for none."""
    case = np.arange(1, chosen.height + 1)
    named = chosen["name"].is_not_null().to_numpy()
    kinds, names = (chosen[name].fill_null(0).to_numpy() for name in ("kind", "name"))
    by_kind = np.zeros(len(_KINDS), np.int64)
    by_kind[kinds[~named]] = case[~named]
    by_name = np.zeros((len(labels.names), len(_KINDS)), np.int64)
    by_name[names[named], kinds[named]] = case[named]
    return by_kind[kind], by_name[labels.name, kind]


def own_on_path(tree: Tree) -> tuple[Ints, Ints, Ints]:
    """Return rows, begins and ends of the times at which spans' self time decides the latency."""
    graph = graph_of(tree)
    points, _ = in_order(graph.points)
    own = critical(points, len(points.time) - 1)[0] & (graph.what == OWN) & (graph.row >= 0)
    end = points.time[own]
    return graph.row[own], end - points.weight[own], end
