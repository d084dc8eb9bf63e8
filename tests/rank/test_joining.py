"""One trace joined from those of all ranks: its tree, times, waits and sentences."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from rank_samples import rank_collectives, rank_trace

from xsp.analyses import communication, rank_imbalance
from xsp.reading.rank import Account, joined
from xsp.trace import Trace, attribute_column


@pytest.fixture
def trace() -> Trace:
    return rank_trace()


@pytest.fixture
def collectives() -> pl.DataFrame:
    return rank_collectives()


@pytest.fixture
def accounts(trace: Trace, collectives: pl.DataFrame) -> list[Account]:
    """Make the results of two ranks of one machine, of which the second is 10 µs late."""
    late = collectives.with_columns(pl.col("start_ns") + 10_000)
    windows = ("LAYERS", "OPERATORS", "LAYERS")
    first = Account(0, trace, began_ns=5_000, host="a", machine="m", windows=windows)
    return [
        replace(first, collectives=collectives),
        replace(first, rank=1, began_ns=8_000, collectives=late),
    ]


def of_all(accounts: list[Account]) -> Trace:
    found = joined(accounts, len(accounts))
    assert found is not None
    found.check()
    return found


def codes(trace: Trace) -> list[str]:
    return [warning.code for warning in trace.warnings]


def test_every_rank_is_a_child_with_its_own_tree(accounts: list[Account], trace: Trace) -> None:
    found = of_all(accounts)
    assert found.root.name == "distributed program of 2 ranks"
    top = found.spans.filter(parent_id=found.root.span_id)
    assert top["name"].to_list() == ["rank 0", "rank 1"]
    assert len(found) == 1 + 2 * len(trace)
    for rank in (0, 1):
        prefix = f"{found.root.name}/rank {rank}"
        inside = found.spans.filter(pl.col("path").str.starts_with(prefix))
        assert inside["name"][1:].to_list() == trace.spans["name"][1:].to_list()
        assert inside["latency_ns"].to_list() == trace.spans["latency_ns"].to_list()
    assert top["thread"].n_unique() == 2


def test_ranks_stand_where_the_clock_says(accounts: list[Account], trace: Trace) -> None:
    found = of_all(accounts)
    starts = found.spans.filter(parent_id=found.root.span_id)["start_ns"].to_list()
    assert starts == [0, 3_000]
    assert trace.root.latency_ns is not None
    assert found.root.latency_ns == trace.root.latency_ns + 3_000
    assert found.root.end_ns == trace.root.end_ns + 3_000


def test_collectives_say_how_long_they_waited(accounts: list[Account]) -> None:
    found = of_all(accounts)
    wait = attribute_column(found.spans, "wait_ns", pl.Float64)
    reduces = found.spans.with_columns(wait.alias("wait")).filter(name="gloo:all_reduce")
    assert (reduces["wait"] / reduces["latency_ns"]).to_list() == pytest.approx(
        [0.25] * 2 + [0] * 2
    )
    collective = attribute_column(found.spans, "collective", pl.String)
    assert collective.drop_nulls().to_list() == ["allreduce"] * 4
    assert any("rank 1 is the last to arrive" in line for line in found.metadata["summary"])


def test_the_analyses_of_communication_answer(accounts: list[Account]) -> None:
    found = of_all(accounts)
    table = communication(found)
    assert table.select("rank", "collective", "group_size", "count").rows() == [
        (0, "allreduce", 2, 2),
        (1, "allreduce", 2, 2),
    ]
    assert table["exposed_ns"].to_list() == pytest.approx(table["time_ns"].to_list())
    ranks = rank_imbalance(found)
    assert ranks.select("rank", "collectives", "last", "made_wait_ns").rows() == [
        (0, 6, 0, 0),
        (1, 6, 6, 60_000),
    ]
    assert ranks["waiting_ns"].to_list() == pytest.approx(
        [0.25 * ranks["communicating_ns"][0], 0.0]
    )


def test_ranks_that_recorded_unlike_windows_are_named(accounts: list[Account]) -> None:
    assert "windows-differ" not in codes(of_all(accounts))
    other = replace(accounts[1], windows=("LAYERS", "LAYERS"))
    found = of_all([accounts[0], other])
    [message] = [each.message for each in found.warnings if each.code == "windows-differ"]
    assert message.startswith("ranks 1 and 0 recorded different steps (2 and 3, 1 of")


def test_a_rank_without_a_trace_is_named_and_the_others_are_shown(accounts: list[Account]) -> None:
    found = of_all([accounts[0], Account(1, why="nothing was evaluated")])
    assert found.spans.filter(parent_id=found.root.span_id)["name"].to_list() == ["rank 0"]
    assert found.warnings[0].message == "the trace lacks rank 1: nothing was evaluated"
    assert joined([Account(0), Account(1)], 2) is None


def test_a_rank_that_failed_is_named(accounts: list[Account]) -> None:
    found = of_all([accounts[0], replace(accounts[1], failed="OSError")])
    assert "rank-failed" in codes(found)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"add_ns": -3_000, "error_ns": 70}, "exchange"), ({"wall_ns": 4_000}, "time of day")],
)
def test_clocks_of_other_machines_are_brought_together(
    accounts: list[Account], change: dict[str, int], code: str
) -> None:
    first = replace(accounts[0], wall_ns=7_000)
    other = replace(accounts[1], machine="other", **change)  # type: ignore[arg-type]
    found = of_all([first, other])
    assert found.metadata["ranks"][1]["clock"] == code
    assert found.metadata["ranks"][1]["clock_add_ns"] == -3_000
    assert found.spans.filter(parent_id=found.root.span_id)["start_ns"].to_list() == [0, 0]
    assert "clocks" in codes(found)


def test_a_joined_trace_is_saved_and_read(accounts: list[Account], tmp_path: object) -> None:
    import xsp  # noqa: PLC0415

    found = of_all(accounts)
    path = found.save(f"{tmp_path}/all.xsp")
    assert xsp.load(path).spans.equals(found.spans)
    assert "rank 1" in str(found)
