"""Collectives with known answers: who waits, who works, and what is left out."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from xsp.reading.rank import COLLECTIVE_SCHEMA
from xsp.reading.rank.wait import imbalance, matched


def table(*rows: tuple[int, int, int], name: str = "gloo:all_reduce") -> pl.DataFrame:
    """Return collectives of one group: number of the step, start and end of each."""
    made = [(0, step, "step", name, 0, start, end) for step, start, end in rows]
    return pl.DataFrame(made, schema=COLLECTIVE_SCHEMA, orient="row")


def test_a_rank_waits_until_the_last_arrives_and_works_then() -> None:
    found = matched([table((0, 10, 50)), table((0, 30, 52)), table((0, 40, 51))], 3)
    assert found.sort("rank").select("rank", "late_ns", "wait_ns", "is_last").rows() == [
        (0, 0, 30, False),
        (1, 20, 10, False),
        (2, 30, 0, True),
    ]


def test_what_one_rank_did_not_record_is_left_out() -> None:
    found = matched([table((0, 0, 10), (1, 20, 30)), table((1, 21, 30))], 2)
    assert found["step"].unique().to_list() == [1]


def test_collectives_that_never_ran_together_are_not_one() -> None:
    assert not matched([table((0, 0, 10)), table((0, 11, 20))], 2).height


def test_the_last_rank_is_told_with_how_long_the_others_waited_for_it() -> None:
    found = matched([table((0, 0, 100), (1, 0, 90)), table((0, 60, 104), (1, 30, 90))], 2)
    first, second = imbalance(found, 2)
    assert (first["collectives"], first["last"], first["made_wait_ns"]) == (2, 0, 0)
    assert (second["last"], second["made_wait_ns"]) == (2, 90)
    assert (second["late_median_ns"], second["late_max_ns"]) == (45.0, 60)
    assert 0 < first["ends_apart_ns"] <= 2


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1000), min_size=3, max_size=3), st.integers(1, 50)),
        min_size=1,
        max_size=8,
    )
)
def test_random_arrivals_are_found_again(times: list[tuple[list[int], int]]) -> None:
    ranks: list[list[tuple[int, int, int]]] = [[], [], []]
    for number, (arrivals, works) in enumerate(times):
        base = 10_000 * number
        for rank, arrival in enumerate(arrivals):
            ranks[rank].append((number, base + arrival, base + max(arrivals) + works))
    found = matched([table(*rows) for rows in ranks], 3).sort("step", "rank")
    expected = [max(arrivals) - arrival for arrivals, _ in times for arrival in arrivals]
    assert found["wait_ns"].to_list() == expected
    worked = (found["end_ns"] - found["start_ns"] - found["wait_ns"]).to_list()
    assert worked == [work for _, work in times for _ in range(3)]
