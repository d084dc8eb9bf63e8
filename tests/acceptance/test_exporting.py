"""Promises of the docs about exports: OTLP, Perfetto, Parquet, flame graphs, exporters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_server import free_port, refusing, serving
from small import answer, measured

import xsp


@pytest.fixture(scope="module")
def trace() -> xsp.Trace:
    return measured()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30000")


def otlp_spans(path: Path) -> list[dict[str, Any]]:
    said = json.loads(path.read_text(encoding="utf-8"))
    return [
        span
        for resource in said["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def attribute(span: dict[str, Any], key: str) -> Any:
    (value,) = (each["value"] for each in span["attributes"] if each["key"] == key)
    return next(iter(value.values()))


def test_otlp_in_json_holds_the_whole_tree(trace: xsp.Trace, tmp_path: Path) -> None:
    path = tmp_path / "net.otlp.json"
    delivery = trace.export(path)
    spans = otlp_spans(path)
    assert delivery.sent == delivery.accepted == len(spans) == len(trace)
    by_id = {span["spanId"]: span for span in spans}
    roots = [span for span in spans if span.get("parentSpanId", "") not in by_id]
    assert len(roots) == 1
    assert len({span["traceId"] for span in spans}) == 1
    latencies = sorted(float(attribute(span, "xsp.latency_ns")) for span in spans)
    assert latencies == pytest.approx(sorted(trace.spans["latency_ns"]), abs=1)


def test_every_host_span_lies_in_its_parent(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.export(tmp_path / "net.otlp.json")
    by_id = {span["spanId"]: span for span in otlp_spans(tmp_path / "net.otlp.json")}
    for span in by_id.values():
        if (parent := by_id.get(span.get("parentSpanId", ""))) is not None:
            assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(span["endTimeUnixNano"]) <= int(parent["endTimeUnixNano"])


def test_a_trace_is_exported_under_the_same_ids_each_time(trace: xsp.Trace, tmp_path: Path) -> None:
    again = xsp.load(trace.save(tmp_path / "net.xsp"))
    ids = []
    for number, each in enumerate((trace, again)):
        each.export(tmp_path / f"{number}.otlp.json")
        ids.append([span["spanId"] for span in otlp_spans(tmp_path / f"{number}.otlp.json")])
    assert ids[0] == ids[1]


def test_the_spans_hang_under_the_caller_s_span(trace: xsp.Trace, tmp_path: Path) -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    trace.export(tmp_path / "net.otlp.json", parent=caller)
    spans = otlp_spans(tmp_path / "net.otlp.json")
    assert {span["traceId"] for span in spans} == {caller.split("-")[1]}
    assert caller.split("-")[2] in {span["parentSpanId"] for span in spans}


def test_fewer_spans_are_exported_where_a_limit_is_set(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.export(tmp_path / "few.otlp.json", max_spans=5)
    spans = otlp_spans(tmp_path / "few.otlp.json")
    assert 1 < len(spans) <= 5
    latencies = [float(attribute(span, "xsp.latency_ns")) for span in spans]
    assert pytest.approx(trace.root.latency_ns, abs=1) in latencies


def test_perfetto_has_an_event_for_each_span(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.export(tmp_path / "net.perfetto.json")
    events = json.loads((tmp_path / "net.perfetto.json").read_text())["traceEvents"]
    complete = Counter(event["name"] for event in events if event["ph"] == "X")
    assert complete.total() == len(trace)
    assert complete["aten::linear"] == 2


def test_parquet_is_the_table_of_spans(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.export(tmp_path / "net.parquet")
    assert pl.read_parquet(tmp_path / "net.parquet")["path"].equals(trace.spans["path"])


def test_stacks_for_flame_graphs_sum_to_the_model(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.export(tmp_path / "net.folded")
    lines = (tmp_path / "net.folded").read_text(encoding="utf-8").splitlines()
    assert any(";aten::linear" in line for line in lines)
    total = sum(int(line.rpartition(" ")[2]) for line in lines)
    assert total == pytest.approx(trace.spans["end_ns"][0], rel=0.01)


def test_speedscope_gets_a_profile(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.export(tmp_path / "net.speedscope.json")
    said = json.loads((tmp_path / "net.speedscope.json").read_text())
    assert "speedscope" in said["$schema"]
    assert {"aten::linear"} <= {frame["name"] for frame in said["shared"]["frames"]}


def test_any_exporter_of_opentelemetry_gets_every_span(trace: xsp.Trace) -> None:
    exporter = InMemorySpanExporter()
    delivery = trace.export(exporter)
    assert delivery.accepted == len(exporter.get_finished_spans()) == len(trace)


@pytest.mark.parametrize("scheme", ["http", "otlp+http"])
def test_a_collector_gets_every_span(trace: xsp.Trace, scheme: str) -> None:
    with serving() as server:
        delivery = trace.export(f"{scheme}://127.0.0.1:{server.port}")
    assert delivery.accepted == server.accepted.total() == len(trace)


def test_export_sends_a_file_to_the_endpoint_of_the_environment(
    trace: xsp.Trace, tmp_path: Path
) -> None:
    trace.save(tmp_path / "net.xsp")
    with serving() as server:
        place = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.port}"}
        done = answer(tmp_path, "export", "net.xsp", "--json", environment=place)
    assert done.returncode == 0, done.stderr
    assert server.accepted.total() == len(trace)


@pytest.mark.slow
def test_what_no_server_took_is_sent_again_from_the_file(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "net.xsp")
    nobody = f"http://127.0.0.1:{free_port()}"
    lost = answer(tmp_path, "export", "net.xsp", "--to", nobody)
    assert lost.returncode == 4
    assert "Connection refused" in lost.stderr
    assert f"xsp export FILE.xsp --to {nobody}" in " ".join(lost.stderr.split())
    with serving() as server:
        again = answer(tmp_path, "export", "net.xsp", "--to", server.url)
    assert again.returncode == 0, again.stderr
    assert server.accepted.total() == len(trace)


def test_a_refusal_names_the_remedy(trace: xsp.Trace) -> None:
    with (
        serving(refusing(401)) as server,
        pytest.raises(xsp.ExportError, match="OTEL_EXPORTER_OTLP_HEADERS"),
    ):
        trace.export(server.url)


def test_an_unknown_ending_is_refused_with_those_that_there_are(trace: xsp.Trace) -> None:
    with pytest.raises(ValueError, match=r"\.otlp\.json.*\.perfetto\.json"):
        trace.export("net.svg")
