from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from samples import frame, layer, pipeline

import xsp
from xsp.answer.comparison.significance import Differences, Estimates, corrected
from xsp.trace import Trace

ACROSS = "across 3 processes"


def measured(own_ns: int, *, margin: float = 0.01, intervals: str | None = ACROSS) -> Trace:
    slow = layer("slow", "Linear", own_ns=own_ns)
    model = layer("Net", "Net", slow, layer("other", "Linear", own_ns=800_000))
    told = {} if intervals is None else {"intervals": intervals}
    return Trace(frame(pipeline("predict", model), margin=margin), {"name": "net", **told})


def verdict(a: Trace, b: Trace, path: str = "predict/Net/slow") -> str:
    row = xsp.compare(a, b).table.filter(pl.col("path_a") == path).row(0, named=True)
    return str(row["verdict"])


def test_of_random_differences_few_that_are_called_significant_are_none() -> None:
    random = np.random.default_rng(1)
    false, power = [], []
    for _ in range(300):
        truth = np.where(np.arange(200) < 20, 5.0, 0.0)
        ends = [random.normal(mean, 1.0) for mean in (np.zeros(200), truth)]
        a, b = (Estimates(each, each - 1.96, each + 1.96) for each in ends)
        called = corrected(Differences.between(a, b).p) <= 0.05
        false.append(called[20:].sum() / max(called.sum(), 1))
        power.append(called[:20].mean())
    assert np.mean(false) < 0.055
    assert np.mean(power) > 0.6


def test_at_the_end_of_its_interval_a_difference_has_a_p_value_of_5_percent() -> None:
    a, b = (Estimates(np.array([x]), np.array([x - 3.0]), np.array([x + 3.0])) for x in (10, 14.0))
    found = Differences.between(a, b)
    assert found.half[0] == pytest.approx(np.hypot(3, 3))
    assert found.p[0] > 0.05
    edge = Differences.between(a, Estimates(b.value + found.half - 4, b.low, b.high))
    assert edge.value[0] == pytest.approx(found.half[0])


def test_a_layer_that_is_20_percent_slower_is_found_and_costs_most() -> None:
    before, after = measured(400_000), measured(480_000)
    assert verdict(before, after) == "slower"
    assert verdict(after, before) == "faster"
    assert verdict(before, after, "predict/Net/other") == "not significant"
    found = xsp.compare(before, after)
    assert found.table["path_a"][1] == "predict/Net/slow"
    assert found.table["ratio"][1] == pytest.approx(1.2)
    assert found.table["own_difference_ns"][1] == 80_000
    assert found.summary["verdict"][0] == "slower"


def test_without_an_interval_nothing_is_called_significant() -> None:
    spans = measured(400_000).spans.with_columns(
        latency_low_ns=pl.lit(None, pl.Float64), latency_high_ns=pl.lit(None, pl.Float64)
    )
    found = xsp.compare(Trace(spans, {"name": "once"}), measured(900_000))
    assert set(found.table["verdict"]) == {"unknown"}
    assert found.summary["verdict"][0] == "unknown"
    assert found.table["difference_ns"][0] == 500_000
    assert found.table["difference_low_ns"].null_count() == found.table.height
    assert any("no interval of the model's latency" in note for note in found.notes)


def test_every_column_is_documented() -> None:
    found = xsp.compare(measured(1), measured(2))
    assert found.table.columns == list(found.columns)
    assert found.summary.columns == list(found.summary_columns)
    assert all(text.endswith(".") for text in [*found.columns.values()])


def test_a_busy_machine_is_named_before_the_differences() -> None:
    quiet = measured(400_000)
    told = {"warnings": [{"code": "busy-machine", "message": "others ran"}]}
    found = xsp.compare(Trace(quiet.spans, dict(quiet.metadata) | told), quiet, names=["a", "b"])
    assert any(note.startswith("a: other programs kept the processors") for note in found.notes)
    assert not any("kept the processors" in note for note in xsp.compare(quiet, quiet).notes)
