"""The paper's tables for a zoo, of small frames whose answers are known."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from synthetic_results import frame as synthetic
from zoo_frames import frame, row

from xsp.zoo import (
    TABLES,
    failures,
    findings,
    models,
    summary,
    thirds_by_quantity,
    warnings,
)

MS = 1e6


def curve(model: str, *latencies_ms: float, **said: Any) -> list[dict[str, Any]]:
    """Return rows at batch 1, 2, 4 and so on."""
    return [row(model, 1 << at, latency_ns=ms * MS, **said) for at, ms in enumerate(latencies_ms)]


def test_a_model_has_one_row_with_its_best_batch_and_the_numbers_there() -> None:
    rows = curve("a", 10.0, 12.0, 24.0)
    for at, each in enumerate(rows):
        each |= {"convolution_pct": 10.0 * at, "flops": 1_000 << at, "warnings": ["noisy"]}
    (found,) = models(frame(*rows)).to_dicts()
    assert found["online_latency_ns"] == 10 * MS
    assert found["optimal_batch"] == 2  # 167 a second, as with batch 4
    assert found["max_throughput_per_s"] == pytest.approx(2 / 0.012)
    assert (found["convolution_pct"], found["flops"]) == (10.0, 2_000)
    assert (found["warnings"], found["measured"], found["failed"]) == (3, 3, 0)


def test_a_model_without_numbers_stays_in_the_table_with_its_reason() -> None:
    table = models(frame(row("a", status="failed", reason="no weights"), *curve("b", 1.0)))
    assert table["model"].to_list() == ["a", "b"]
    first = table.row(0, named=True)
    assert (first["online_latency_ns"], first["reason"], first["failed"]) == (None, "no weights", 1)


@pytest.mark.parametrize(
    ("reach", "sure"), [(0.01, True), (0.2, False), (None, False)], ids=["narrow", "wide", "none"]
)
def test_the_best_batch_is_sure_where_the_intervals_allow_no_other(
    reach: float | None, sure: bool
) -> None:
    rows = [
        row("a", batch, latency_ns=latency, **ends_of(latency, reach))
        for batch, latency in ((1, 1e6), (2, 1.2e6), (4, 2.4e6), (8, 4.8e6))
    ]
    (best,) = models(frame(*rows)).select("optimal_batch", "optimal_batch_sure").rows()
    assert best == (2, sure)
    assert models(frame(rows[0]))["optimal_batch_sure"].to_list() == [None]
    said = warnings(frame(*rows))["problem"].to_list()
    assert any(each.startswith("the best batch is not sure") for each in said) is not sure


def ends_of(latency_ns: float, reach: float | None) -> dict[str, float]:
    if reach is None:
        return {}
    return {
        "latency_low_ns": latency_ns * (1 - reach),
        "latency_high_ns": latency_ns * (1 + reach),
    }


def test_every_batch_with_numbers_is_a_row_with_what_a_doubling_brings() -> None:
    rows = [*curve("a", 10.0, 10.0), row("a", 4, status="out-of-memory", reason="8 GiB")]
    table = TABLES["throughput"](frame(*rows))
    assert table["batch"].to_list() == [1, 2]
    assert table["gain_pct"].to_list() == [pytest.approx(100.0), None]
    assert table["best"].to_list() == [False, True]


def test_the_best_batch_says_which_third_is_heaviest() -> None:
    shares = {"first_latency_pct": 20.0, "middle_latency_pct": 50.0, "last_latency_pct": 30.0}
    equal = {f"{third}_flops_pct": 100 / 3 for third in ("first", "middle", "last")}
    results = frame(*curve("a", 1.0, **shares, **equal), *curve("b", 1.0))
    table = TABLES["batch"](results)
    assert table["latency_third"].to_list() == ["middle", None]
    assert table["flops_third"].to_list() == ["first", None]
    assert table["accessed_third"].to_list() == [None, None]
    counted = thirds_by_quantity(results).row(0, named=True)
    assert counted == {
        "quantity": "latency",
        "first_models": 0,
        "middle_models": 1,
        "last_models": 0,
        "unknown_models": 1,
    }


def test_reasons_that_differ_in_numbers_are_one_group() -> None:
    table = failures(
        frame(
            *(
                row(f"m{n}", status="time-out", reason=f"it took longer than {n} s\nmore")
                for n in range(7)
            ),
            row("x", status="failed", reason="no such model"),
        )
    )
    assert table.rows() == [
        ("time-out", "it took longer than … s", 7, 7, "m0, m1, m2, m3, m4 and 2 more"),
        ("failed", "no such model", 1, 1, "x"),
    ]


def test_what_all_models_say_together() -> None:
    results = frame(
        *curve("a", 1.0, 1.1, convolution_pct=80.0, bound="compute", overhead_pct=2.0),
        *curve("b", 1.0, 2.0, convolution_pct=20.0, bound="memory", overhead_pct=4.0),
    )
    assert findings(models(results)) == [
        "convolutions take 20.0 to 80.0 % of the latency, in half of 2 models more than 50.0 %",
        "the best batch is 1 for 1 of 2 models; of 2 it is not sure",
        "1 of 2 models are memory-bound at their best batch",
        "profiling would have added up to 4.0 % to a latency, in half of 2 models less than 3.0 %; "
        "it is removed",
    ]


def test_a_summary_has_the_models_and_what_failed() -> None:
    text = summary(frame(*curve("quick", 1.0), row("x", status="failed", reason="no such model")))
    lines = text.splitlines()
    assert lines[0] == "2 models, 1 measurement, 1 without numbers"
    assert lines[2].split() == ["quick", "1.00", "ms", "1.00", "k/s", "—", "—", "—"]
    assert lines[-1] == "1 failed: no such model (x)"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("rows", [0, 1])
def test_each_table_has_its_documented_columns_even_of_nothing(name: str, rows: int) -> None:
    failed = [row("a", status="failed", reason="no such model")][:rows]
    assert TABLES[name](frame(*failed)).columns == [*TABLES[name].columns]


def test_no_table_changes_the_results() -> None:
    results = synthetic(80)
    before = results.clone()
    for table in TABLES.values():
        assert isinstance(table(results), pl.DataFrame)
    assert results.equals(before)
