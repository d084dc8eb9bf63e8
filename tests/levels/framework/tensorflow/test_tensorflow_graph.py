"""Made-up operators of a graph; known layers and parts."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.provider import SpanRows
from xsp_levels.framework.keras.index import LayerIndex
from xsp_levels.framework.tensorflow.profiler.graph import in_layers

US = 1_000


def graph(ops: list[tuple[str, str, int, int]], **options: Any) -> SpanRows:
    """Rows of one graph run, of operators with type, node, start and end in microseconds."""
    names, nodes, starts, ends = zip(*ops, strict=True)
    table = pl.DataFrame(
        {
            "name": names,
            "node": nodes,
            "origin": nodes,
            "start_ns": [start * US for start in starts],
            "end_ns": [end * US for end in ends],
            "function": "step",
        }
    ).with_columns(
        thread=pl.lit(1),
        sort=pl.lit("node"),
        run=pl.lit(7),
        id=pl.int_range(2, pl.len() + 2, dtype=pl.Int64),
        parent_id=pl.lit(1),
        fused=pl.lit(None, pl.List(pl.String)),
        hlo_op=pl.lit(None, pl.String),
        hlo_module=pl.lit(None, pl.String),
    )
    layers = LayerIndex()
    return in_layers(table, {}, layers, options.pop("ahead", {}), **options)


STEP = [
    ("Mul", "sgd/Mul_1", 0, 2),
    ("Assign", "sgd/Assign_1", 2, 4),
    ("MatMul", "gradient_tape/MatMul", 5, 90),
    ("Mul", "sgd/Mul", 91, 92),
    ("Assign", "sgd/Assign", 93, 95),
]


def test_an_optimizer_that_updates_weights_one_by_one_is_one_part() -> None:
    rows = graph(STEP)
    part = rows.row(by_predicate=pl.col("name") == "optimizer", named=True)
    assert (part["kind"], part["start_ns"], part["end_ns"]) == ("pipeline", 0, 95 * US)
    assert part["attr.operators_ns"] == 7 * US
    assert rows.filter(pl.col("parent_id") == part["id"]).height == 4


def test_an_optimizer_that_a_loop_in_the_graph_runs_twice_is_two_parts() -> None:
    again = [(name, node, start + 100, end + 100) for name, node, start, end in STEP]
    between = ("MatMul", "MatMul", 96, 99)
    assert graph([*STEP, between, *again]).filter(pl.col("name") == "optimizer").height > 1


def test_brief_operators_are_marked_where_the_profiler_may_leave_them_out() -> None:
    rows = graph(STEP, brief_left_out=True)
    marked = rows.filter(pl.col("attr.unsteady"))
    assert sorted(marked["name"]) == ["Assign", "Assign", "Mul", "Mul", "optimizer"]
    assert "attr.unsteady" not in graph(STEP).columns


def test_reads_of_weights_are_left_out_and_costly_casts_are_a_part() -> None:
    ops = [
        ("ReadVariableOp", "net/dense/ReadVariableOp", 0, 80),
        ("Cast", "net/dense/Cast", 80, 200),
        ("Cast", "net/norm/Cast", 200, 210),
        ("MatMul", "net/dense/MatMul", 210, 400),
    ]
    ahead = {"step": {node: "" for _, node, _, _ in ops[:3]}}
    rows = graph(ops, ahead=ahead)
    assert rows["name"].to_list() == ["Cast", "MatMul", "parameters"]
    assert rows["kind"].to_list() == ["op", "op", "pipeline"]


def test_random_numbers_that_a_layer_draws_say_nothing_of_when_it_runs() -> None:
    scope = "StatefulPartitionedCall/net_1"
    noise, drawn = f"{scope}/noise", f"{scope}/drop_1/uniform"
    ops = [
        ("StatelessRandomUniformV2", noise, 0, 80),
        ("MatMul", f"{scope}/dense_1/MatMul", 80, 200),  # makes something of noise
        ("StatelessRandomUniformV2", drawn, 0, 90),
        ("GreaterEqual", f"{scope}/drop_1/GreaterEqual", 90, 150),
        ("Mul", f"{scope}/drop_1/Mul", 400, 500),
    ]
    sources = (noise, noise, drawn, drawn)
    ahead = {"step": {node: of for (_, node, _, _), of in zip(ops, sources, strict=False)}}
    rows = graph(ops, ahead=ahead).filter(pl.col("kind") != "op")
    spans = {
        name: (start, end) for name, start, end in rows.select("name", "start_ns", "end_ns").rows()
    }
    assert spans["dense"] == (80 * US, 200 * US)
    assert spans["drop"] == (400 * US, 500 * US)
    assert spans["random numbers"] == (0, 150 * US)


def test_sums_of_parameters_that_tensorflow_made_are_left_out() -> None:
    rewritten = "net/add/ArithmeticOptimizer/AddOpsRewrite_Leaf_"
    ops = [("AddN", f"{rewritten}0_add", 0, 3), ("AddN", f"{rewritten}1_add", 900, 1300)]
    assert graph(ops)["start_ns"].to_list() == [900 * US]
