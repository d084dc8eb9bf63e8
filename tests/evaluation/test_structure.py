from __future__ import annotations

import polars as pl

from xsp.correlation.parent import correlate
from xsp.evaluation.run import Run, Rung
from xsp.evaluation.run_table import observe
from xsp.evaluation.structure import RunSpans, run_spans
from xsp.level import Kind
from xsp.provider.row import PROVENANCE, span_rows


def structure(*provenances: str) -> RunSpans:
    """Return the structure of one run with library calls that came to be in these ways."""
    root = span_rows(
        {"kind": ["pipeline"], "name": "predict", "start_ns": 0, "end_ns": 99, "thread": 1}
    )
    calls = span_rows(
        {
            "kind": Kind.CALL.value,
            "name": provenances,
            "start_ns": range(10, 10 + len(provenances)),
            "end_ns": range(10, 10 + len(provenances)),
            "thread": 1,
            "provenance": pl.Series(provenances, dtype=PROVENANCE),
        }
    )
    frame = correlate(root, calls).frames[0]
    return run_spans(observe([Run(Rung(frozenset(Kind)), 99, frame)]), 0)


def test_whatever_was_recorded_cost_something_and_the_root_did_not() -> None:
    made = structure("recorded", "marker", "ended_by_launch", "derived")
    assert made.paid.tolist() == [False, True, True, True, False]
    assert made.derived.tolist() == [False, False, False, False, True]
    assert made.ended.tolist() == [False, False, False, True, False]


def test_a_marker_is_recorded_on_the_rung_of_kernels_first() -> None:
    made = structure("recorded", "marker", "ended_by_launch")
    call, kernel = Kind.CALL.order, Kind.KERNEL.order
    assert made.first.tolist() == [0, call, kernel, call]
    assert made.order.tolist() == [0, call, kernel, kernel]
