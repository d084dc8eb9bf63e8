from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from xsp.correlation.parent import correlate
from xsp.evaluation.run import Run, Rung
from xsp.evaluation.run_table import Observations, observe
from xsp.evaluation.structure import (
    RunSpans,
    has_usual_structure,
    matched,
    run_spans,
    typical_run,
)
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


def looped(*counts: int) -> Observations:
    """Return runs that make so many equal calls, of 10 ns each, one after the other."""
    runs = []
    for count in counts:
        root = span_rows(
            {
                "kind": ["pipeline"],
                "name": "predict",
                "start_ns": 0,
                "end_ns": 10 * count,
                "thread": 1,
            }
        )
        starts = [10 * at for at in range(count)]
        calls = span_rows(
            {
                "kind": Kind.CALL.value,
                "name": ["work"] * count,
                "start_ns": starts,
                "end_ns": [start + 10 for start in starts],
                "thread": 1,
            }
        )
        frame = correlate(root, calls).frames[0]
        runs.append(Run(Rung(frozenset({Kind.PIPELINE, Kind.CALL})), 10 * count, frame))
    return observe(runs)


def test_of_runs_of_which_hardly_two_are_alike_that_of_average_length_is_shown() -> None:
    seen = looped(1, 1, 2, 4, 6, 8, 30)  # 7.4 on average
    members = range(len(seen.runs))
    assert not has_usual_structure(seen, members)
    assert typical_run(seen, members) == 5
    assert matched(seen, 5).all()  # the first for the first, the second for the second


def test_of_runs_that_call_the_model_unlike_often_the_one_nearest_to_average_is_shown() -> None:
    seen = looped(4, 4, 4, 20, 12)
    runs = tuple(
        replace(run, model_calls=calls, latency_ns=latency)
        for run, calls, latency in zip(
            seen.runs, (4, 4, 4, 20, 12), (9, 8, 44, 50, 90), strict=True
        )
    )
    members = list(range(5))
    assert typical_run(seen, members) in (0, 1, 2)
    unlike = replace(seen, runs=runs)
    assert not has_usual_structure(unlike, members)
    assert typical_run(unlike, members) == 4  # 12 calls, and 8.8 on average
    assert typical_run(unlike, [0, 2, 1, 3]) == 2  # of those with four calls by its length


def test_the_usual_structure_is_shown_whatever_few_others_do() -> None:
    seen = looped(4, 4, 4, 30, 30)
    members = range(len(seen.runs))
    assert has_usual_structure(seen, members)
    shown = typical_run(seen, members)
    assert seen.runs[shown].latency_ns == 40
    unlike = np.isin(seen.run, (3, 4)) & (seen.parent >= 0)
    assert (matched(seen, shown) == ~unlike).all()


def test_few_runs_have_the_structure_that_is_most_frequent() -> None:
    seen = looped(1, 2, 3, 2)
    assert has_usual_structure(seen, range(4))
    assert seen.runs[typical_run(seen, range(4))].latency_ns == 20
