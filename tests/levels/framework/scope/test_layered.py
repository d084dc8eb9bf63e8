from __future__ import annotations

import polars as pl

from xsp.provider import SpanRows, span_rows
from xsp_levels.framework.scope import layered


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


def test_busy_time_of_a_layer_on_two_threads_counts_overlaps_once() -> None:
    rows = layered(*operators("a mul 0 4 1", "a add 2 6 2", "a mul 8 9 1"))
    assert rows["attr.operators_ns"].drop_nulls().to_list() == [7.0]


def test_layer_that_runs_again_after_others_is_called_twice() -> None:
    rows = layered(*operators("a mul 0 2", "a add 2 3", "b mul 3 5", "a mul 5 7", "a add 7 8"))
    assert drawn(rows) == ["a 0-3", "b 3-5", "a 5-8"]
    assert rows["attr.call_index"].to_list()[-3:] == [0, 1, None]


def test_branches_that_take_turns_stay_whole() -> None:
    rows = layered(
        *operators("a mul 0 2 1", "b mul 1 3 2", "a add 3 9 2", "b add 3 5 1", "b sub 5 8 1",
                   "a sub 9 12 1")
    )  # fmt: skip
    assert drawn(rows) == ["a 0-12", "b 1-8"]


def test_branches_that_take_turns_on_one_thread_stay_whole() -> None:
    rows = layered(*operators("a mul 0 2", "b mul 2 3", "a add 3 5", "b add 5 6"))
    assert drawn(rows) == ["a 0-5", "b 2-6"]


def test_unlike_parts_of_a_layer_are_one_call() -> None:
    rows = layered(
        *operators("net mul 0 1", "net/a add 1 2", "net/b add 2 3", "- copy 3 4", "net mul 4 5",
                   "net/c add 5 6")
    )  # fmt: skip
    assert drawn(rows)[0] == "net 0-6"


def test_like_nodes_of_one_call_are_no_second_call() -> None:
    ops, scopes = operators("bn read 0 1", "a mul 1 2", "bn read 2 3", "bn add 3 4")
    nodes = pl.Series("attr.node", ["bn/read", "a/mul", "bn/read_1", "bn/add"])
    assert drawn(layered(ops.with_columns(nodes), scopes))[0] == "bn 0-4"


def test_module_written_into_the_graph_twice_is_called_twice() -> None:
    ops, scopes = operators("fc mul 0 1", "fc add 1 2", "a mul 2 3", "fc mul 3 4", "fc add 4 5")
    nodes = pl.Series("attr.node", ["fc/mul", "fc/add", "a/mul", "fc/mul_1", "fc/add_1"])
    assert drawn(layered(ops.with_columns(nodes), scopes)) == ["fc 0-2", "a 2-3", "fc 3-5"]


def test_loop_that_runs_a_node_less_often_is_divided() -> None:
    ops, scopes = operators(
        "cell mul 0 1", "- less 1 2", "cell mul 2 3", "cell cut 3 4", "- less 4 5", "cell mul 5 6"
    )
    nodes = pl.Series("attr.node", ["mul", "less", "mul", "cut", "less", "mul"])
    assert drawn(layered(ops.with_columns(nodes), scopes)) == ["cell 0-1", "cell 2-4", "cell 5-6"]


def test_layers_within_a_layer_called_twice_are_called_once_in_each() -> None:
    rows = layered(
        *operators("a/x mul 0 1", "a/y mul 1 2", "b mul 2 3", "a/x mul 3 4", "a/y mul 4 5")
    )
    assert drawn(rows) == ["a 0-2", "a/x 0-1", "a/y 1-2", "b 2-3", "a 3-5", "a/x 3-4", "a/y 4-5"]


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


def test_statement_about_operators_becomes_that_of_the_outermost_layer() -> None:
    ops, scopes = operators("a mul 0 1", "- add 1 2")
    rows = layered(ops.with_columns(parent_id=pl.lit(0, dtype=pl.Int64)), scopes)
    assert rows["parent_id"].to_list() == [rows["id"].to_list()[-1], 0, 0]


def test_layers_are_described_by_their_paths() -> None:
    rows = layered(
        *operators("net/a mul 0 1"),
        describe=lambda path: {"module_class": "Dense"} if path == ("net", "a") else None,
    )
    layers = rows.filter(pl.col("kind") == "layer")
    assert layers["attr.module_class"].to_list() == [None, "Dense"]
    assert layers["attr.module_path"].to_list() == ["net", "net.a"]


def test_operators_without_scopes_stay_as_they_are() -> None:
    ops, scopes = operators("- mul 0 1", "- add 1 2")
    assert layered(ops, scopes).equals(ops)
