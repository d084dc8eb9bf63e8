from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import samples

from xsp.errors import TraceFormatError
from xsp.trace.document import SPAN_SCHEMA, Span, Trace
from xsp.warning import TraceWarning


@pytest.fixture
def resnet() -> Trace:
    return samples.trace(
        samples.resnet(),
        name="ResNet",
        warnings=[{"code": "unmatched", "message": "Two operators came and went."}],
        plan={"rounds": 30, "kinds": ["layer", "op"]},
    )


# What a trace is


def test_root_is_the_first_row(resnet: Trace) -> None:
    assert resnet.root.parent_id is None
    assert resnet.root.name == "predict"
    assert resnet.root.attributes["exact"] is True


def test_span_has_a_field_for_every_column() -> None:
    assert [field.name for field in fields(Span)] == [*SPAN_SCHEMA, "attributes"]


def test_a_span_says_what_is_known_in_a_line(resnet: Trace) -> None:
    said = repr(resnet.root)
    assert said.startswith("<Span region ")
    assert "None" not in said
    assert len(said.splitlines()) == 1


def test_spans_of_a_kind_are_frames(resnet: Trace) -> None:
    assert set(resnet.layers["kind"]) == {"layer"}
    assert set(resnet.ops["kind"]) <= {"op"}
    assert resnet.layers.columns == resnet.kernels.columns == resnet.spans.columns


def test_a_trace_gives_advice_and_a_report(resnet: Trace, tmp_path: Path) -> None:
    assert "advice" in resnet.advice().columns
    assert "<html" in resnet.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_unknown_path_is_a_key_error_that_says_where_paths_are(resnet: Trace) -> None:
    with pytest.raises(KeyError, match=r"trace\.spans"):
        resnet.span("predict/nowhere")


def test_warnings_are_read_from_the_metadata(resnet: Trace) -> None:
    assert resnet.warnings == (TraceWarning("unmatched", "Two operators came and went."),)


def test_changing_the_spans_handed_out_changes_nothing(resnet: Trace) -> None:
    spans = resnet.spans
    spans.drop_in_place("name")
    assert "name" in resnet.spans.columns


def test_attributes_of_a_trace_cannot_be_set(resnet: Trace) -> None:
    with pytest.raises(AttributeError, match="read-only"):
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


@pytest.mark.parametrize("column", ["span_id", "latency_ns", "attributes"])
def test_missing_column_is_refused_by_name(resnet: Trace, column: str) -> None:
    with pytest.raises(TraceFormatError, match=rf"missing: \['{column}'\]"):
        Trace(resnet.spans.drop(column), {})


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


@pytest.mark.timing
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
    # Processor time of all threads: a busy neighbor must not fail the test.
    start = time.process_time()
    printed = str(trace)
    assert time.process_time() - start < 4  # 1 to 2 s, by the processor
    assert "Cell" in printed
