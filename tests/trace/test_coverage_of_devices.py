from __future__ import annotations

import pytest
from gpu import Gpu, Step, Work, launch

from xsp.level import Kind
from xsp.reading.merge.assembly import merge
from xsp.trace.coverage import Attribution, attribution
from xsp.trace.document import Trace


def trace_of(*model: Step, rounds: int = 2) -> Trace:
    merged = merge(Gpu(model).measure(rounds))
    trace = Trace(merged.spans, {"name": "net", "warnings": [], "levels": {}})
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


def test_without_devices_nothing_is_attributed() -> None:
    assert attribution(trace_of(Step(Kind.LAYER, "fc")).spans) is None


def test_the_first_line_tells_what_the_devices_worked_for() -> None:
    first = " ".join(mixed().tree(width=140).split("\n\n")[0].split())
    assert "device: 10.0 µs of work, 60.0 % under a layer, 80.0 % under an operator" in first
    assert "10.0 % unattributed" in first
    assert "device:" not in str(trace_of(Step(Kind.LAYER, "fc")))


def test_the_tree_has_a_column_for_devices_where_there_are_any() -> None:
    lines = mixed().tree().splitlines()
    head = next(line for line in lines if line.endswith("what"))
    assert head.split() == ["time", "%", "device", "what"]
    kernel = next(line for line in lines if "gemm" in line)
    assert kernel.count("5.00") == 2  # its latency is the device's
    operator = next(line for line in lines if "aten::mm" in line)
    assert "5.00 µs" in operator
    assert "device" not in trace_of(Step(Kind.LAYER, "fc")).tree()
