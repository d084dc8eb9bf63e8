from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import numpy as np
import polars as pl
import pytest
import samples

from xsp.errors import TraceFormatError
from xsp.problem import Problem
from xsp.trace.document import SPAN_SCHEMA, Span, Trace


@pytest.fixture
def resnet() -> Trace:
    return samples.trace(
        samples.resnet(),
        name="ResNet",
        problems=[{"code": "unmatched", "message": "Two operators came and went."}],
        plan={"rounds": 30, "kinds": ["layer", "op"]},
    )


# What a trace is


def test_root_is_the_first_row(resnet: Trace) -> None:
    assert resnet.root.parent_id is None
    assert resnet.root.name == "predict"
    assert resnet.root.attributes["exact"] is True


def test_span_has_a_field_for_every_column() -> None:
    assert [field.name for field in fields(Span)] == [*SPAN_SCHEMA, "attributes"]


def test_children_are_the_spans_right_below(resnet: Trace) -> None:
    model = resnet.children(resnet.root)
    assert [span.name for span in model] == ["ResNet"]
    names = [span.name for span in resnet.children(model[0])]
    assert names[:4] == ["conv1", "bn1", "relu", "maxpool"]


def test_span_is_found_by_its_path(resnet: Trace) -> None:
    assert resnet.span("predict/ResNet/layer1/0/relu#2").name == "relu"


def test_unknown_path_is_a_key_error_that_says_where_paths_are(resnet: Trace) -> None:
    with pytest.raises(KeyError, match=r"trace\.spans"):
        resnet.span("predict/nowhere")


def test_problems_are_read_from_the_metadata(resnet: Trace) -> None:
    assert resnet.problems == (Problem("unmatched", "Two operators came and went."),)


def test_length_is_the_number_of_spans_and_a_trace_is_true(resnet: Trace) -> None:
    assert len(resnet) == resnet.spans.height
    assert Trace(resnet.spans.clear(), {})


def test_changing_the_spans_handed_out_changes_nothing(resnet: Trace) -> None:
    spans = resnet.spans
    spans.drop_in_place("name")
    assert "name" in resnet.spans.columns


def test_a_frame_handed_in_may_be_changed_afterwards(resnet: Trace) -> None:
    spans = resnet.spans
    trace = Trace(spans, {})
    spans.drop_in_place("name")
    assert "name" in trace.spans.columns


def test_attributes_of_a_trace_cannot_be_set(resnet: Trace) -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        resnet._spans = resnet.spans
    with pytest.raises(AttributeError):
        resnet.anything = 1


def test_metadata_cannot_be_changed(resnet: Trace) -> None:
    metadata: Any = resnet.metadata
    with pytest.raises(TypeError):
        metadata["name"] = "other"
    with pytest.raises(TypeError):
        metadata["plan"]["rounds"] = 3
    assert metadata["plan"]["kinds"] == ("layer", "op")


def test_metadata_that_json_cannot_hold_is_refused(resnet: Trace) -> None:
    with pytest.raises(TypeError, match=r"must be JSON.*object"):
        Trace(resnet.spans, {"name": object()})


def test_numbers_of_numpy_and_nan_become_plain_metadata(resnet: Trace) -> None:
    trace = Trace(resnet.spans, {"runs": np.int64(3), "latency_ns": float("nan")})
    assert trace.metadata["runs"] == 3
    assert trace.metadata["latency_ns"] is None


def test_repr_is_one_line_that_says_what_and_how_long(resnet: Trace) -> None:
    assert repr(resnet) == "<Trace ResNet: 39.0 ± 0.39 ms, 728 spans, 1 problem>"


@pytest.mark.parametrize("column", ["span_id", "latency_ns", "attributes"])
def test_missing_column_is_refused_by_name(resnet: Trace, column: str) -> None:
    with pytest.raises(TraceFormatError, match=rf"missing: \['{column}'\]"):
        Trace(resnet.spans.drop(column), {})


def test_columns_in_another_order_are_refused(resnet: Trace) -> None:
    spans = resnet.spans
    with pytest.raises(TraceFormatError, match="in another order"):
        Trace(spans.select(reversed(spans.columns)), {})


def test_column_of_another_type_is_refused_by_name(resnet: Trace) -> None:
    with pytest.raises(TraceFormatError, match="start_ns is Float64"):
        Trace(resnet.spans.with_columns(pl.col("start_ns").cast(pl.Float64)), {})
    with pytest.raises(TraceFormatError, match="attributes is Int32"):
        Trace(resnet.spans.with_columns(attributes=pl.lit(1)), {})


@pytest.mark.parametrize("column", ["kind", "level"])
def test_unknown_kinds_and_levels_are_refused(resnet: Trace, column: str) -> None:
    evil = pl.lit('op"><img src=x onerror="alert(1)">').alias(column)
    with pytest.raises(TraceFormatError, match=f"^span 'predict' .* is of an unknown {column}"):
        Trace(resnet.spans.with_columns(evil), {})


# Size


@pytest.mark.slow
def test_a_million_spans_are_printed_in_seconds() -> None:
    block = samples.frame(samples.wide(20_000))
    below = block.tail(-1)
    copies = [
        below.with_columns(
            span_id=pl.col("span_id") + i * 100_000,
            parent_id=pl.when(pl.col("parent_id") == 1)
            .then(1)
            .otherwise(pl.col("parent_id") + i * 100_000)
            .cast(pl.UInt64),
        )
        for i in range(50)
    ]
    trace = Trace(pl.concat([block.head(1), *copies]), {"name": "big"})
    assert len(trace) > 1_000_000
    # Processor time of all threads: a busy neighbour must not fail the test.
    start = time.process_time()
    printed = str(trace)
    assert time.process_time() - start < 4  # 1 to 2 s, by the processor
    assert "Cell" in printed
