"""Lists the latency and throughput of each model (A1 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.model.evaluation import MEANINGS, inside, step_rows
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = MEANINGS | {
    "device_pct": "Time in which devices worked, of the latency; over 100 where they end after it.",
    "layers": "How many layers a step calls.",
    "kernels": "How many kernels a step runs on devices.",
    "parameter_bytes": "Size of the parameters of the outermost layers, tied ones once.",
    "peak_bytes": "Most memory held at one time in a step or outermost layer, above its start.",
    "runs": "How many steps the latency rests on.",
}


@analysis("How quick is the model, and at which batch size?", _COLUMNS, paper="A1", several=True)
def model_information(*traces: Trace) -> pl.DataFrame:
    """Return latency and throughput of what was evaluated in some traces, a row for each.

    Args:
        traces: Traces of models, such as those of a sweep over batch sizes, or of programs, which
            have a row for each group of like steps.
    """
    rows = step_rows(traces)
    found = [_facts(Tree.of(trace), rows.filter(trace=n)) for n, trace in enumerate(traces)]
    return pl.concat(found, how="vertical_relaxed").select(*_COLUMNS)


def _facts(tree: Tree, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of one trace with what its spans tell of them."""
    times = tree.spans.select("latency_ns", "device_ns")
    device = [_share(times[list(spans)]) for spans in rows["spans"]]
    first = rows["spans"].list.first()
    return rows.with_columns(
        pl.Series("device_pct", device, dtype=pl.Float64),
        runs=pl.Series(tree.spans["runs"].gather(first)),
        first=first,
    ).join(_contents(tree, first.drop_nulls()), on="first", how="left", maintain_order="left")


def _share(times: pl.DataFrame) -> float | None:
    """Return for how much of the latency devices worked, in percent; null where none was seen."""
    whole = times.filter(pl.col("latency_ns") > 0, pl.col("device_ns").is_not_null())
    share: float | None = whole.select(100 * pl.sum("device_ns") / pl.sum("latency_ns")).item()
    return share if whole.height else None


def _contents(tree: Tree, first: pl.Series) -> pl.DataFrame:
    """Find the rows of the spans in each of some steps."""
    layers = tree.is_of(Kind.LAYER)
    contents = pl.DataFrame(
        {
            "of": inside(tree, first.to_list()),
            "layer": layers,
            "kernel": tree.is_of(Kind.KERNEL),
            "outermost": layers & (tree.nearest(layers) < 0),
            "region": tree.is_of(Kind.REGION),
            "name": tree.spans["name"],
            "parameter_bytes": tree.attribute("parameter_bytes", pl.Int64)
            - tree.attribute("shared_parameter_bytes", pl.Int64).fill_null(0),
            "peak_bytes": tree.attribute("peak_bytes", pl.Int64),
        }
    )
    modules = pl.col("outermost") & pl.struct("name", "parameter_bytes").is_first_distinct()
    parameters, peak = pl.col("parameter_bytes"), pl.col("peak_bytes")
    return (
        contents.filter(pl.col("of") >= 0)
        .group_by("of", maintain_order=True)
        .agg(
            _counted("layer").alias("layers"),
            _counted("kernel").alias("kernels"),
            pl.when(parameters.count() > 0).then(parameters.filter(modules).sum()),
            peak.filter(pl.col("outermost") | pl.col("region")).max(),
        )
        .with_columns(pl.col("of").replace_strict(dict(enumerate(first))).alias("first"))
    )


def _counted(flag: str) -> pl.Expr:
    """Return how many spans have a flag, null where none has: they were not recorded."""
    return pl.sum(flag).cast(pl.Int64).replace(0, None)
