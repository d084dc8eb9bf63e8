"""Records of layer calls in, rows of kind layer and pipeline out."""

from __future__ import annotations

from xsp.provider import SpanRows, no_rows
from xsp_levels.framework.keras.layer import LayerRecords


def layer_rows(records: LayerRecords) -> SpanRows:
    """Return a row for each call of a layer."""
    return no_rows()


def predict_rows(records: LayerRecords, name: str) -> SpanRows:
    """Return a pipeline row for each outermost call of a model."""
    return no_rows()
