"""What is said of a program: evaluations that differ from their group's trace, and the rest."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from samples import frame, pipeline, trace

from xsp.composition.journal import Journal
from xsp.composition.problem import journal_problems, nothing_evaluated, told_apart
from xsp.trace import Trace


def net(latency_ns: int, margin: float = 0.02) -> Trace:
    """Return the trace of a group whose latency is known so well."""
    node = pipeline("net", own_ns=latency_ns)
    return Trace(frame(node, margin=margin), trace(node).metadata)


def said(took_ns: list[float], known: Trace, *, repeated: bool = True) -> str:
    found = told_apart("Net", np.array(took_ns), known, repeated=repeated)
    return f"{found.code}: {found.message}" if found else ""


def test_two_latencies_far_out_of_each_others_interval_are_both_told() -> None:
    found = said([2_510_000.0] * 45, net(2_095_000))
    assert found.startswith("repeated-apart: Net: an evaluation took 2.51 ms in the program, and ")
    assert "2.10 ms where it was repeated after the block" in found


def test_repetitions_that_were_slower_are_told_as_well() -> None:
    assert "took 1.00 ms in the program, and 1.20 ms" in said([1e6] * 45, net(1_200_000))


@pytest.mark.parametrize(
    ("own_ns", "margin"),
    [(1.04e6, 0.001), (0.96e6, 0.001), (1.15e6, 0.08), (1.0e6, 0.0)],
    ids=["by 4 % longer", "by 4 % shorter", "within the intervals", "equal"],
)
def test_what_may_be_the_same_is_not_told_apart(own_ns: float, margin: float) -> None:
    assert said([own_ns] * 45, net(1_000_000, margin)) == ""


def test_repetitions_that_lasted_far_otherwise_are_told_however_wide_the_intervals_are() -> None:
    for own_ns in (0.7e6, 1.3e6):
        assert said([own_ns] * 45, net(1_000_000, 0.9)).startswith("repeated-apart")
        assert said([own_ns] * 45, net(1_000_000, 0.9), repeated=False) == ""


def test_slow_evaluations_in_the_average_are_not_blamed_on_repetitions() -> None:
    took_ns = [1e6] * 40 + [5e6] * 5
    for repeated in (False, True):
        found = said(took_ns, net(1_000_000), repeated=repeated)
        assert found.startswith("average-apart: Net: an evaluation took 1.44 ms on average")
        assert "1.00 ms without the slowest and the quickest" in found


def test_nothing_is_said_where_no_interval_is_known() -> None:
    known = net(1_000_000)
    unknown = pl.lit(None, dtype=pl.Float64)
    spans = known.spans.with_columns(latency_low_ns=unknown, latency_high_ns=unknown)
    assert said([2e6], Trace(spans, known.metadata)) == ""


@pytest.mark.parametrize(("children_s", "loading", "told"), [
    (2.0, False, True), (0.01, False, False), (2.0, True, False),
])  # fmt: skip
def test_processes_that_xsp_does_not_see_are_told(
    children_s: float, loading: bool, told: bool
) -> None:
    journal = Journal(1, 0, 10**9, children_s=children_s, loading=loading)
    found = journal_problems(journal, [])
    assert [problem.code for problem in found] == ["child-processes"] * told
    if told:
        assert "the program started took 2.00 s of processor time" in found[0].message


def test_where_nothing_was_evaluated_it_is_said_why() -> None:
    session: Any = SimpleNamespace(problems=[])
    journal = Journal(1, 0, 10**9)
    assert "Call one in it" in str(nothing_evaluated(journal, session))
    journal.left_by = "ValueError"
    said = str(nothing_evaluated(journal, session))
    assert said.endswith("the block was left by ValueError before a model was called")
    journal = Journal(1, 0, 10**9, children_s=2.0)
    assert "took 2.00 s of processor time" in str(nothing_evaluated(journal, session))


def test_the_time_of_a_child_is_the_journals_once_it_has_ended() -> None:
    journal = Journal(1, 0)
    worked = "import time; [None for _ in iter(lambda: time.process_time() < 0.3, False)]"
    subprocess.run([sys.executable, "-c", worked], check=True)
    journal.end(10**9)
    assert 0.25 < journal.children_s < 3
    again = Journal(1, 0)
    again.end(10**9)
    assert again.children_s == 0
