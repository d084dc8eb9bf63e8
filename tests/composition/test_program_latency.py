"""How long evaluations of a group take by those of the program alone."""

from __future__ import annotations

import pytest

from xsp.composition.journal import Evaluation, Journal
from xsp.composition.nested.part import parts
from xsp.composition.timeline import Timeline
from xsp.composition.typical import evaluation_times, own_latencies


def journal(*lengths: int) -> Journal:
    made = [
        Evaluation(1, 0, 10_000 * n, 10_000 * n + ns, None, False, (1, ()))
        for n, ns in enumerate(lengths)
    ]
    return Journal(1, 0, 10_000 * len(made), made)


def test_what_a_first_call_takes_beyond_the_others_is_in_no_average() -> None:
    known = journal(9_000, *[1_000] * 9)
    lasting_ns = Timeline(known, {}, lambda n: n).evaluations_ns
    nested = parts(known, "block", ["net"] * 10)
    found = evaluation_times(lasting_ns, [0] * 10, nested, {1: 8_000.0})
    assert found[0].tolist() == [1_000] * 10


@pytest.mark.parametrize(
    ("count", "apart", "known"),
    [(10, False, True), (9, False, False), (3, True, True), (2, True, False)],
)
def test_a_few_evaluations_of_the_program_say_more_than_repetitions_that_differ(
    count: int, *, apart: bool, known: bool
) -> None:
    timeline = Timeline(journal(*[1_000 + n for n in range(count)]), {}, lambda n: n)
    found = own_latencies(timeline, {0} if apart else ())
    assert set(found) == ({0} if known else set())
    for own in found.values():
        assert own["latency_low_ns"] < own["latency_ns"] < own["latency_high_ns"]
        assert own["latency_ns"] == pytest.approx(1_000 + (count - 1) / 2, abs=1)
