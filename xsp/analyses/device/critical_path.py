"""Critical path: a trace in, what its latency consists of, and what would be gained, out."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.analyses.contract import analysis
from xsp.analyses.device.activity import COMMUNICATION
from xsp.analyses.device.path.graph import QUEUE, Graph, graph_of
from xsp.analyses.device.path.longest_path import (
    Points,
    condensed,
    critical,
    in_order,
    reached,
)
from xsp.analyses.tree import Floats, Tree
from xsp.evaluation import Ints
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace

_COLUMNS = {
    "kind": "Kind of span on the path, `communication`, or what lies between spans: `latency`, "
    "`queue` or `thread`.",
    "name": "Name of the span, or of that in front of which it lies; null for all of the kind.",
    "count": "How many spans.",
    "time_ns": "Their own time on the path: the kinds sum to the whole.",
    "share_pct": "As a share of the whole.",
    "gain_ns": "How much sooner all would end if none of it took time anywhere; null for names "
    "after the first twelve.",
    "gain_pct": "As a share of the whole.",
}
_NAMES = 12  # for each of which the path is sought once more


@analysis("What determines the latency, and what would be gained without it?", _COLUMNS)
def critical_path(trace: Trace) -> pl.DataFrame:
    """Return the longest path through a trace, by kind and name, those with most time first.

    Args:
        trace: Any trace; with launches and work of devices the path leads through these.
    """
    tree = Tree.of(trace)
    graph = graph_of(tree)
    points, _ = in_order(graph.points)
    on_path, waited = critical(points, len(points.time) - 1)
    way, wait = _labels(tree, graph)
    times = [
        way.with_columns(time_ns=points.weight).filter(on_path),
        wait.with_columns(time_ns=points.delay)[waited],
    ]
    rows = _rows(pl.concat(times).filter(pl.col("time_ns") > 0))
    gains = _gains(points, way, wait, rows)
    whole = int(points.time[-1] - points.time[0])
    share = 100 / whole if whole else 0.0
    return (
        rows.with_columns(gain_ns=pl.Series(gains, dtype=pl.Float64).fill_nan(None))
        .with_columns(share_pct=pl.col("time_ns") * share, gain_pct=pl.col("gain_ns") * share)
        .select(*_COLUMNS)
    )


def _labels(tree: Tree, graph: Graph) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return kind, name and row of the way to each point, and of the delay where it waits."""
    names = pl.col("name").str
    is_kernel = pl.col("kind") == Kind.KERNEL.value
    collective = tree.attribute("collective").is_not_null()
    communicates = is_kernel & (names.contains(COMMUNICATION) | collective)
    spans = tree.spans.select(
        "name",
        kind=pl.when(communicates).then(pl.lit("communication")).otherwise("kind"),
        row=pl.int_range(pl.len(), dtype=pl.Int64),
        works=pl.col("kind").is_in([kind.value for kind in DEVICE_ACTIVITIES]),
    )
    each = spans[np.maximum(graph.row, 0)]
    before = pl.when("works").then(pl.lit("latency")).otherwise(pl.lit("thread"))
    queue = pl.Series(graph.what == QUEUE)
    way = each.with_columns(kind=pl.when(queue).then(pl.lit("queue")).otherwise("kind"))
    columns = ("kind", "name", "row")
    return way.select(*columns), each.with_columns(kind=before).select(*columns)


def _rows(path: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each kind, then one for each name, each of them with most time first."""
    sums = (pl.col("row").n_unique().cast(pl.Int64).alias("count"), pl.col("time_ns").sum())
    names = path.group_by("kind", "name").agg(*sums).sort("kind", "name")
    kinds = path.group_by("kind").agg(*sums).with_columns(name=pl.lit(None, pl.String)).sort("kind")
    each = (kinds.select(names.columns), names)
    ordered = (rows.sort("time_ns", descending=True, maintain_order=True) for rows in each)
    return pl.concat(ordered)


def _gains(points: Points, way: pl.DataFrame, wait: pl.DataFrame, rows: pl.DataFrame) -> Floats:
    """Return how much sooner the last point is reached without the time of each row.

    NaN for names that are not among those with most time.
    """
    named = rows["name"].is_not_null().to_numpy()
    chosen = np.flatnonzero(~named | (np.cumsum(named) <= _NAMES))
    cases = rows[chosen].select("kind", "name", case=pl.int_range(1, len(chosen) + 1))
    some, leads = condensed(points)
    times = [
        np.repeat(each[:, None] * 1.0, len(chosen) + 1, 1) for each in (some.weight, some.delay)
    ]
    taken = ((way, points.weight, times[0]), (wait, points.delay * (points.cross >= 0), times[1]))
    for labels, values, of in taken:
        for case in _cases(labels, cases):
            at = np.flatnonzero((case > 0) & (values > 0))
            np.subtract.at(of, (leads[at], case[at]), values[at])
    last = reached(*in_order(some), *times)[-1]
    gains = np.full(rows.height, np.nan)
    gains[chosen] = last[0] - last[1:]
    return gains


def _cases(label: pl.DataFrame, cases: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return the case of each point's kind, and of its name; 0 for none."""
    kinds = cases.filter(pl.col("name").is_null()).drop("name")
    named = cases.filter(pl.col("name").is_not_null())
    by_kind = label.join(kinds, on="kind", how="left", maintain_order="left")
    by_name = label.join(named, on=("kind", "name"), how="left", maintain_order="left")
    kind, name = (
        table["case"].fill_null(0).cast(pl.Int64).to_numpy() for table in (by_kind, by_name)
    )
    return kind, name
