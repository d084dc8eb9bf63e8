from __future__ import annotations

import polars as pl
import pytest
from samples import frame, layer, op, pipeline

import xsp
from xsp.answer.comparison import parse_condition
from xsp.trace import Trace


def measured(own_ns: int, *, peak: int = 1 << 20, margin: float | None = 0.01) -> Trace:
    """Return a trace of a batch of 8, whose layer `fc` takes some time."""
    fc = layer("fc", "Linear", op("aten::mm", own_ns=own_ns), own_ns=0)
    block = layer("block", "Block", layer("fc2", "Linear"))
    model = layer("Net", "Net", fc, block, input_shapes=[[8, 4]])
    spans = frame(pipeline("predict", model), margin=margin or 0.01)
    with_peak = pl.col("attributes").struct.with_fields(peak_bytes=pl.lit(peak, pl.Int64))
    spans = spans.with_columns(with_peak)
    if margin is None:
        unknown = pl.lit(None, pl.Float64)
        spans = spans.with_columns(latency_low_ns=unknown, latency_high_ns=unknown)
    return Trace(spans, {"name": "net", "intervals": "across 3 processes"})


def holds(text: str, a: Trace, b: Trace) -> bool | None:
    [outcome] = parse_condition(text).outcomes(xsp.compare(a, b, names=("a", "b")))
    assert outcome.text.startswith(text.strip())
    return outcome.holds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latency > 5%", True),
        ("latency>5%", True),
        ("  latency > 15.5 %", True),
        ("latency > 30%", False),
        ("latency < -5%", False),
        ("latency > 50us", True),
        ("latency > 0.3 ms", False),
        ("latency > 1s", False),
        ("layer:fc > 10%", True),
        ("layer:Net.fc > 99µs", True),
        ("layer:Net/block > 0%", False),
        ("layer:block.fc2 > 1ns", False),
        ("throughput < -10%", True),
        ("throughput < -90%", False),
        ("throughput < -1000/s", True),
        ("memory > 5%", True),
        ("memory > 64KiB", True),
        ("memory > 1MiB", False),
    ],
)
def test_a_condition_holds_where_the_difference_is_significant_and_beyond(
    text: str, expected: bool
) -> None:
    slower = measured(500_000, peak=(1 << 20) + 100_000)
    assert holds(text, measured(400_000), slower) is expected


def test_what_cannot_be_known_is_not_decided() -> None:
    assert holds("latency > 5%", measured(400_000, margin=None), measured(900_000)) is None
    assert holds("device time > 5%", measured(400_000), measured(900_000)) is None


def test_a_layer_of_no_trace_is_an_error_with_a_suggestion() -> None:
    found = xsp.compare(measured(1), measured(2))
    with pytest.raises(xsp.AnalysisError, match=r"no trace has a layer .*did you mean block/fc2"):
        parse_condition("layer:block.fc3 > 5%").outcomes(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("latency", "it is no condition"),
        ("latency > fast", "it is no condition"),
        ("latency >= 5%", "it is no condition"),
        ("latncy > 5%", "no quantity 'latncy'; did you mean latency?"),
        ("latency > 5MiB", "'MiB' is no unit"),
        ("memory > 5ms", "'ms' is no unit"),
        ("throughput < 5%", "'<' a negative one"),
        ("latency > -5%", "'>' takes a positive amount"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_grammar(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="The grammar") as error:
        parse_condition(text)
    assert said in str(error.value)


def test_energy_is_compared_with_its_interval() -> None:
    def taking(joules: float, half: float) -> Trace:
        trace = measured(400_000)
        ends = {"energy_j": joules, "energy_low_j": joules - half, "energy_high_j": joules + half}
        columns = [pl.lit(value).alias(name) for name, value in ends.items()]
        fields = pl.col("attributes").struct.with_fields(columns)
        return trace.replaced(trace.spans.with_columns(fields))

    before = taking(10.0, 0.1)
    assert holds("energy > 3%", before, taking(11.0, 0.1))
    assert holds("energy > 500mJ", before, taking(11.0, 0.1))
    assert holds("energy < -3%", before, taking(9.0, 0.1))
    assert holds("energy > 3%", before, taking(10.1, 0.1)) is False
    assert holds("energy > 3%", before, taking(11.0, 3.0)) is False  # not significant
    assert holds("energy > 3%", before, measured(400_000)) is None
