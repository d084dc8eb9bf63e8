"""Lists type, shapes, latency and memory of each layer (A2 of the paper)."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.layer.row import columns, layer_rows
from xsp.trace import Trace, attribute_column

_SHAPES = {"input_shape": "input_shapes", "output_shape": "output_shapes"}
_COLUMNS = columns(
    "index", "group", "phase", "layer", "type", "layer_type",
    input_shape="Shape of each tensor put in: `8×3×224×224`; `?` for an unknown list.",
    output_shape="Shape of each tensor that came out: what the paper calls the layer's shape.",
) | columns(
    "calls", "latency_ns", "latency_low_ns", "latency_high_ns", "device_ns", "allocated_bytes",
    parameter_bytes="Size of its parameters, with those of the layers inside.",
    path="Path of the span in the trace.",
)  # fmt: skip


@analysis("What is each layer, and what does it cost?", _COLUMNS, needs=(Need.LAYERS,), paper="A2")
def layer_information(trace: Trace) -> pl.DataFrame:
    """Return type, shapes, latency and allocated memory of each layer.

    Args:
        trace: A trace with layers.

    Raises:
        AnalysisError: The trace has no layers.
    """
    table = layer_rows(trace)
    shapes = [
        _text(attribute_column(table, attribute, _NESTED)).alias(column)
        for column, attribute in _SHAPES.items()
    ]
    return table.with_columns(shapes).select(*_COLUMNS)


_NESTED = pl.List(pl.List(pl.Int64))


def _text(shapes: pl.Series) -> pl.Series:
    """Return lists of shapes as texts.

    >>> _text(pl.Series([[[8, 64, 7, 7]], [[8], []], None], dtype=_NESTED)).to_list()
    ['8×64×7×7', '8, scalar', None]
    """
    sizes = pl.element().cast(pl.List(pl.String)).list.join("×")
    each = pl.when(sizes == "").then(pl.lit("scalar")).otherwise(sizes).fill_null("?")
    return shapes.list.eval(each).list.join(", ")
