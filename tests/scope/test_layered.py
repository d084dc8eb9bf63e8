from __future__ import annotations

import polars as pl

from xsp.provider import SpanRows, span_rows
from xsp.scope import layered


def operators(*lines: str) -> tuple[SpanRows, pl.Series]:
    """Return operators and scopes of lines such as `a/b mul 2 5 1`: thread 1, nothing for none."""
    fields = [line.split() for line in lines]
    scopes = [None if scope == "-" else scope.split("/") for scope, *_ in fields]
    columns = {
        "kind": "op",
        "name": [field[1] for field in fields],
        "start_ns": [int(field[2]) for field in fields],
        "end_ns": [int(field[3]) for field in fields],
        "thread": [int(field[4]) if len(field) > 4 else 1 for field in fields],
    }
    return span_rows(columns), pl.Series(scopes, dtype=pl.List(pl.String))


def drawn(rows: SpanRows) -> list[str]:
    """Return each layer as `path start-end`, in the order of time."""
    known = rows.drop_nulls("id")
    names = dict(zip(known["id"].to_list(), known["name"].to_list(), strict=True))
    above = dict(zip(known["id"].to_list(), known["parent_id"].to_list(), strict=True))

    def path(number: int) -> str:
        parent = above[number]
        return (f"{path(parent)}/" if parent in names else "") + str(names[number])

    layers = rows.filter(pl.col("kind") == "layer").sort(
        "start_ns", "end_ns", descending=[False, True]
    )
    return [f"{path(row['id'])} {row['start_ns']}-{row['end_ns']}" for row in layers.to_dicts()]


def test_operators_lie_in_the_layers_of_their_scopes() -> None:
    rows = layered(*operators("net/a mul 0 2", "net/b add 2 5", "net sum 6 7", "- copy 8 9"))
    assert drawn(rows) == ["net 0-7", "net/a 0-2", "net/b 2-5"]
    parents = dict(zip(rows["name"].to_list(), rows["parent_id"].to_list(), strict=True))
    ids = dict(zip(rows["name"].to_list(), rows["id"].to_list(), strict=True))
    assert parents == {
        "mul": ids["a"], "add": ids["b"], "sum": ids["net"], "copy": None,
        "net": None, "a": ids["net"], "b": ids["net"],
    }  # fmt: skip


def test_branches_that_take_turns_stay_whole() -> None:
    rows = layered(
        *operators("a mul 0 2 1", "b mul 1 3 2", "a add 3 9 2", "b add 3 5 1", "b sub 5 8 1",
                   "a sub 9 12 1")
    )  # fmt: skip
    assert drawn(rows) == ["a 0-12", "b 1-8"]


def test_runs_and_phases_share_no_layer() -> None:
    ops, scopes = operators("a mul 0 1", "a add 1 2", "a mul 2 3", "a mul 3 4")
    rows = layered(
        ops,
        scopes,
        steps=pl.Series([0, 0, 1, 1]),
        phases=pl.Series([None, "backward", None, None], dtype=pl.String),
    )
    assert drawn(rows) == ["a 0-1", "a 1-2", "a 2-4"]
    phases = rows.sort("start_ns")["attr.phase"].drop_nulls()
    assert phases.to_list() == ["forward", "backward", "forward"]


def test_layers_of_operators_inside_an_operator_lie_in_it() -> None:
    rows = layered(
        *operators(
            "rnn while 0 9", "rnn/cell mul 1 2", "rnn less 2 3", "rnn/cell mul 3 4", "- x 5 6"
        )
    )
    assert drawn(rows) == ["rnn 0-9", "rnn/while/cell 1-2", "rnn/while/cell 3-4"]


def test_stated_operator_around_is_the_home_on_other_threads() -> None:
    ops, scopes = operators("- execute 0 9 1", "a dot 1 3 2", "a dot 2 5 3")
    ops = ops.with_columns(
        id=pl.Series([7, None, None], dtype=pl.Int64), parent_id=pl.Series([0, 7, 7])
    )
    rows = layered(ops, scopes)
    assert drawn(rows) == ["execute/a 1-5"]
    assert rows["parent_id"].to_list()[0] == 0


def test_layers_are_described_by_their_paths() -> None:
    rows = layered(
        *operators("net/a mul 0 1"),
        describe=lambda path: {"module_class": "Dense"} if path == ("net", "a") else None,
    )
    layers = rows.filter(pl.col("kind") == "layer")
    assert layers["attr.module_class"].to_list() == [None, "Dense"]
    assert layers["attr.module_path"].to_list() == ["net", "net.a"]
