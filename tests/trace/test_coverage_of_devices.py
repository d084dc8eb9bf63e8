from __future__ import annotations

import polars as pl
import pytest
from gpu import Gpu, Step, Work, launch

from xsp.level import Kind
from xsp.merge.assembly import merge
from xsp.trace.coverage import Attribution, attribution
from xsp.trace.document import Trace


def trace_of(*model: Step, rounds: int = 2) -> Trace:
    merged = merge(Gpu(model).measure(rounds))
    trace = Trace(merged.spans, {"name": "net", "problems": [], "levels": {}})
    trace.check()
    return trace


def mm(length_ns: int, name: str = "aten::mm") -> Step:
    return Step(Kind.OP, name, (launch(Work("gemm", length_ns)),))


def mixed() -> Trace:
    """Return 6 us under a layer, 5 of them under an operator, 3 us under another, 1 us alone."""
    bare = launch(Work("fill", 1_000, Kind.MEMSET))
    layer = Step(Kind.LAYER, "fc", (mm(5_000), bare))
    wait = launch(Work("wait", 50_000, Kind.SYNC))
    return trace_of(layer, mm(3_000), launch(Work("copy", 1_000, Kind.MEMCPY)), wait)


def test_device_time_is_attributed_to_what_is_above() -> None:
    found = attribution(mixed().spans)
    assert found is not None
    assert (found.layer, found.operator, found.nowhere) == pytest.approx((0.6, 0.8, 0.1))


def test_what_was_not_recorded_is_not_zero() -> None:
    found = attribution(trace_of(launch(Work("gemm"))).spans)
    assert found == Attribution(None, None, 1.0)


def test_marked_spans_count_where_another_tool_recorded_them() -> None:
    marked = Step(Kind.PIPELINE, "Copy 10", (launch(Work("copy", 3_000, Kind.MEMCPY)),))
    trace = trace_of(marked, launch(Work("fill", 1_000, Kind.MEMSET)))
    found = attribution(trace.spans, marks=True)
    assert found is not None
    assert (found.mark, found.nowhere) == pytest.approx((0.75, 0.25))
    assert attribution(trace.spans) == Attribution(None, None, 1.0)
    imported = Trace(trace.spans, {**trace.metadata, "imported": {"tool": "Nsight Systems"}})
    assert "of its work 75.0 % under a marked span, 25.0 % unattributed" in first_line(imported)
    assert "marked" not in first_line(trace)


def test_neither_the_root_nor_the_span_of_a_process_marks_anything() -> None:
    rank = Step(Kind.PIPELINE, "rank 0", (launch(Work("gemm", 3_000)),))
    spans = trace_of(rank).spans
    process = pl.when(pl.col("name") == "rank 0").then(0).cast(pl.Int64).alias("process")
    fields = pl.struct(pl.col("attributes").struct.unnest(), process)
    found = attribution(spans.with_columns(attributes=fields), marks=True)
    assert found == Attribution(None, None, 1.0)


def first_line(trace: Trace) -> str:
    return " ".join(trace.tree(width=140).split("\n\n")[0].split())


def test_without_devices_nothing_is_attributed() -> None:
    assert attribution(trace_of(Step(Kind.LAYER, "fc")).spans) is None


def test_the_first_line_tells_what_the_devices_worked_for() -> None:
    first = " ".join(mixed().tree(width=140).split("\n\n")[0].split())
    assert "device: 10.0 µs, of its work 60.0 % under a layer, 80.0 % under an operator" in first
    assert "10.0 % unattributed" in first
    assert "device:" not in str(trace_of(Step(Kind.LAYER, "fc")))


def test_the_tree_has_a_column_for_devices_where_there_are_any() -> None:
    lines = mixed().tree().splitlines()
    head = next(line for line in lines if "latency" in line)
    assert head.split() == ["latency", "share", "device", "overhead"]
    kernel = next(line for line in lines if "gemm" in line)
    assert kernel.count("5.00") == 2  # its latency is the device's
    operator = next(line for line in lines if "aten::mm" in line)
    assert "5.00 µs" in operator
    assert "device" not in trace_of(Step(Kind.LAYER, "fc")).tree()


def test_the_page_has_a_column_for_devices_where_there_are_any() -> None:
    assert '<span class="n device">5.00 µs</span>' in mixed()._repr_html_()
    assert 'class="n device"' not in trace_of(Step(Kind.LAYER, "fc"))._repr_html_()


def test_what_keeps_a_device_busy_is_shown_though_the_host_hardly_noticed() -> None:
    quick = Step(Kind.LAYER, "quick", (mm(900_000, "aten::huge"),), own_ns=100)
    slow = Step(Kind.LAYER, "slow", tuple(mm(10, f"aten::op{i}") for i in range(40)), own_ns=9_000)
    trace = trace_of(Step(Kind.LAYER, "net", (slow, quick)))
    assert "aten::huge" in trace.tree(rows=12)


def test_repeated_kernels_are_folded_and_summed() -> None:
    lines = trace_of(Step(Kind.LAYER, "net", (mm(5_000),) * 30)).tree(rows=20).splitlines()
    folded = next(line for line in lines if "gemm" in line)
    assert "150 µs" in folded
    assert "30 \u00d7 " in folded


def test_kinds_are_told_in_words() -> None:
    works = [
        Work("big", 10**6),
        Work("gemm"),
        Work("zero", kind=Kind.MEMSET),
        Work("put", kind=Kind.MEMCPY),
    ]
    op = Step(Kind.OP, "aten::mm", tuple(launch(work) for work in works))
    many = (op, *(mm(10**6, f"op{i}") for i in range(30)))
    lines = trace_of(Step(Kind.LAYER, "net", many)).tree(width=140).splitlines()
    hidden = next(line for line in lines if "1 more" in line)
    for words in ("3 more launches", "1 more kernel", "1 more set", "1 more copy"):
        assert words in hidden
