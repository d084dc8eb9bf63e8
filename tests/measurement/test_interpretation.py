from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest

from xsp.evaluation import Rung
from xsp.level import Kind, Level
from xsp.measurement.interpretation import interpret
from xsp.provider import Records, Request, SpanRows, span_rows
from xsp.session import PlannedVisit, Visit
from xsp_levels.framework.scope import layered

THREAD = 7


class Rows:
    """A provider whose records are its rows."""

    name = "rows"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.PIPELINE})

    def unavailable(self) -> None:
        return None

    def start(self, clock: object, request: Request) -> None:
        """Record nothing."""

    def stop(self) -> Records:
        return Records(None)

    def spans(self, records: Records) -> SpanRows:
        rows: SpanRows = records.data
        return rows


@pytest.mark.parametrize(
    ("thread", "expected"), [(THREAD, ["root", "step"]), (8, ["root", "step", "loading"])]
)
def test_what_a_program_does_after_an_evaluation_is_not_in_the_wait_for_devices(
    thread: int, expected: list[str]
) -> None:
    provider = Rows()
    rows = span_rows(
        {
            "kind": "pipeline",
            "name": ["step", "loading"],
            "start_ns": [20, 85],
            "end_ns": [30, 95],
            "thread": [THREAD, thread],
        }
    )
    visit = Visit(
        planned=PlannedVisit(Rung(frozenset({Kind.PIPELINE})), round=0),
        name="root",
        thread=THREAD,
        windows=((10, 100),),
        records=((provider, Records(rows)),),
        waited_ns=(20,),
    )
    (run,) = interpret([visit], [provider]).runs
    assert run.rows is not None
    assert run.rows["name"].to_list() == expected


def tree_of(
    rows: SpanRows, others: Sequence[Rows] = (), *, shared: bool = False
) -> dict[str, str | None]:
    """Return the name of each row's parent, of the only run of a visit that holds some rows."""
    provider = Rows()
    visit = Visit(
        planned=PlannedVisit(Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP})), round=0),
        name="root",
        thread=THREAD,
        windows=((10, 100),),
        records=((provider, Records(rows)),),
        waited_ns=(0,),
        shared=shared,
    )
    (run,) = interpret([visit], [provider, *others]).runs
    assert run.rows is not None
    names, parents = run.rows["name"].to_list(), run.rows["parent"].to_list()
    assert len(set(names)) == len(names)
    return {name: names[at] if at >= 0 else None for name, at in zip(names, parents, strict=True)}


def test_layers_made_of_operators_are_of_the_thread_of_these_where_threads_evaluate_at_once() -> (
    None
):
    ops = span_rows(
        {
            "kind": "op",
            "name": ["mul", "dot", "mul of another", "dot of another"],
            "start_ns": [20, 30, 25, 35],
            "end_ns": [28, 38, 33, 43],
            "thread": [THREAD, THREAD, 8, 8],
        }
    )
    scopes = pl.Series([["net", "first"], ["net", "last"], ["other", "a"], ["other", "b"]])
    rows = layered(ops, scopes, steps=pl.Series([1, 1, 2, 2]))
    assert tree_of(rows, shared=True) == {
        "root": None, "net": "root", "first": "net", "last": "net", "mul": "first", "dot": "last"
    }  # fmt: skip


def test_operators_on_a_pool_are_of_the_thread_that_ran_their_graph() -> None:
    graphs = {"name": ["graph", "graph of another"], "thread": [THREAD, 8], "id": [1, 2]}
    ops = {"name": ["mul", "mul of another"], "thread": [9, 9], "parent_id": [1, 2]}
    rows = span_rows(
        {
            "kind": "op",
            "name": [*graphs["name"], *ops["name"]],
            "start_ns": [20, 20, 30, 40],
            "end_ns": [90, 90, 38, 48],
            "thread": [*graphs["thread"], *ops["thread"]],
            "id": [*graphs["id"], None, None],
            "parent_id": [None, None, *ops["parent_id"]],
        }
    )
    scopes = pl.Series([None, None, ["net"], ["other"]], dtype=pl.List(pl.String))
    expected = {"root": None, "graph": "root", "net": "graph", "mul": "net"}
    assert tree_of(layered(rows, scopes), shared=True) == expected


@pytest.mark.parametrize("first", [1, 1 << 61, (1 << 63) - 2])
def test_ids_may_be_as_large_as_a_column_holds(first: int) -> None:
    rows = span_rows(
        {
            "kind": ["layer", "layer", "op"],
            "name": ["net", "dense", "dot"],
            "start_ns": [20, 20, 30],
            "end_ns": [90, 80, 40],
            "thread": [THREAD, 8, 9],
            "id": [first, first + 1, None],
            "parent_id": [0, first, first + 1],
        }
    )
    expected = {"root": None, "net": "root", "dense": "net", "dot": "dense"}
    assert tree_of(rows, [Rows() for _ in range(7)]) == expected
