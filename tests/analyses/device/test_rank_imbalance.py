"""Ranks: timelines with known answers, and two real ranks of one run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from device_samples import Row, rows_of, timeline, work

import xsp
from xsp.analyses import rank_imbalance
from xsp.trace import Trace

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
RANKS = [TRACES / "kineto" / f"rank{number}.json.gz" for number in (0, 1)]


def reduce(rank: int, start: int, end: int) -> Row:
    return work(start, end, name="ncclDevKernel_AllReduce", device=rank, inside=rank + 1)


def ranks(count: int, *rows: Row) -> Trace:
    processes = [
        {"kind": "region", "name": f"rank {n}", "start_ns": 0, "end_ns": 500, "thread": n}
        | {"process": n, "rank": n}
        for n in range(count)
    ]
    return timeline(500, *processes, *rows)


def test_the_last_rank_makes_the_others_wait() -> None:
    first = [reduce(0, 10, 50), reduce(1, 30, 50), reduce(2, 40, 50)]
    second = [reduce(0, 100, 150), reduce(1, 120, 150), reduce(2, 101, 150)]
    table = rank_imbalance(ranks(3, *first, *second))
    columns = ("rank", "collectives", "waiting_ns", "late_median_ns", "late_max_ns")
    assert rows_of(table, *columns) == [(0, 2, 50, 0, 0), (1, 2, 10, 20, 20), (2, 2, 19, 15.5, 30)]
    assert rows_of(table, "last", "made_wait_ns") == [(0, 0), (1, 39), (1, 40)]
    assert table["ends_apart_ns"].to_list() == [0.0, 0.0, 0.0]


def test_what_only_one_rank_recorded_is_left_out() -> None:
    both = [reduce(0, 100, 150), reduce(1, 120, 151)]
    alone = [reduce(0, 10, 50), reduce(0, 200, 220)]
    table = rank_imbalance(ranks(2, *alone, *both))
    assert rows_of(table, "collectives", "waiting_ns", "communicating_ns") == [
        (1, 20, 110),
        (1, 0, 31),
    ]
    assert table["ends_apart_ns"].to_list() == [0.5, 0.5]


def test_one_process_is_refused_with_what_to_do() -> None:
    with pytest.raises(xsp.AnalysisError, match="xsp import rank"):
        rank_imbalance(timeline(100, work(0, 10)))


@pytest.mark.skipif(not RANKS[0].is_file(), reason="needs the real traces (XSP_TRACES)")
def test_of_two_recorded_ranks_the_waits_are_within_what_they_communicate() -> None:
    table = rank_imbalance(xsp.read(*RANKS, steps=False))
    assert table["rank"].to_list() == [0, 1]
    assert table["collectives"].to_list() == [5, 5]
    assert table["last"].to_list() == [0, 5]
    for row in table.to_dicts():
        assert 0 <= row["waiting_ns"] < row["communicating_ns"]
    # Of two ranks one waits for the other.
    assert table["waiting_ns"].to_list() == table["made_wait_ns"].reverse().to_list()
