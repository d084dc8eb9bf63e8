from __future__ import annotations

from pathlib import Path
from typing import cast

import polars as pl
import pytest
import samples
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from xsp.errors import ExportError
from xsp.export import Delivery
from xsp.show.export.destination import MOST_SPANS
from xsp.trace.attribute import ATTRIBUTES
from xsp.trace.document import Trace

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Refusing:
    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_an_exporter_gets_the_trace() -> None:
    trace, exporter = samples.trace(samples.resnet()), InMemorySpanExporter()
    done = trace.export(exporter)
    assert done.sent == done.accepted == len(trace) == len(exporter.get_finished_spans())
    assert done.destination == "InMemorySpanExporter"
    first = exporter.get_finished_spans()[0].get_span_context()
    assert first is not None
    assert done.trace_id == f"{first.trace_id:032x}"


SAMPLES = {
    "Boolean": True,
    "Int64": 7,
    "Float64": 0.5,
    "String": "some",
    "List(String)": ["a", ""],
    "List(Int64)": [8, 2, 1],
    "List(Float64)": [0.75, 0.25],
    "List(List(Int64))": [[1, 3], []],
}


EXPORTABLE = [one for one in ATTRIBUTES if not one.is_table]


def everything() -> Trace:
    """Return a trace with every attribute that there is, and a span without any."""
    spans = samples.trace(samples.resnet()).spans[:2]
    dtypes = {one.name: eval(one.type, vars(pl)) for one in EXPORTABLE}
    values = [{one.name: SAMPLES[one.type] for one in EXPORTABLE}, dict.fromkeys(dtypes)]
    return Trace(
        spans.with_columns(pl.Series("attributes", values, dtype=pl.Struct(dtypes))),
        {"name": "everything", "warnings": []},
    )


def test_every_attribute_that_there_is_can_be_exported() -> None:
    exporter = InMemorySpanExporter()
    everything().export(exporter)
    root, child = exporter.get_finished_spans()
    told = {name: root.attributes[name] for name in root.attributes or {}}
    assert {one.exported for one in EXPORTABLE} <= told.keys()
    assert (told["xsp.grid"], told["xsp.input_shapes"]) == ("8, 2, 1", "1x3, -")
    assert told["xsp.self_shares"] == "0.75, 0.25"
    assert not {one.exported for one in ATTRIBUTES} & set(child.attributes or {})


def test_an_exporter_that_refuses_is_an_error_with_the_counts() -> None:
    trace = samples.trace(samples.resnet())
    with pytest.raises(ExportError, match=f"Refusing took 0 of {len(trace)} spans") as told:
        trace.export(Refusing())
    done = cast(Delivery, told.value.delivery)
    assert (done.accepted, done.rejected) == (0, len(trace))


@pytest.mark.parametrize(
    "parent", ["", "garbage", PARENT.upper(), f"ff{PARENT[2:]}", f"00-{'0' * 32}-{'1' * 16}-01"]
)
def test_a_parent_that_is_none_is_wrong(parent: str) -> None:
    exporter = InMemorySpanExporter()
    with pytest.raises(ValueError, match="no W3C traceparent"):
        samples.trace(samples.resnet()).export(exporter, parent=parent)
    assert not exporter.get_finished_spans()


@pytest.mark.parametrize(
    "name", ["net.parquet", "net.perfetto.json", "net.speedscope.json", "net.folded"]
)
def test_a_file_without_ids_takes_no_parent(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no place for a parent"):
        samples.trace(samples.resnet()).export(tmp_path / name, parent=PARENT)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("destination", [3, b"net.parquet", ["otlp://localhost"]])
def test_what_cannot_be_a_destination_is_of_the_wrong_type(destination: object) -> None:
    with pytest.raises(TypeError, match="OpenTelemetry span exporters"):
        samples.trace(samples.resnet()).export(destination)


def test_a_budget_below_one_span_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a span budget of 0"):
        samples.trace(samples.resnet()).export(tmp_path / "net.parquet", max_spans=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("n.OTLP.json", True),
        ("n.perfetto.json", False),
        ("n.parquet", False),
    ],
)
def test_only_files_for_jaeger_are_cut(tmp_path: Path, name: str, *, cut: bool) -> None:
    many = samples.pipeline("step", *(samples.op("aten::add") for _ in range(MOST_SPANS + 9)))
    done = samples.trace(many).export(tmp_path / name)
    assert (done.sent <= MOST_SPANS) == cut
    assert done.sent == done.accepted
