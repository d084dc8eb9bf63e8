from __future__ import annotations

import polars as pl

from xsp_levels.framework.jax.profiler.ending import ends, lanes


def operators(*rows: tuple[str, int, int, int | None], run: int = 1) -> pl.DataFrame:
    names = ["hlo_op", "start_ns", "end_ns", "_p"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    return frame.with_columns(run_id=pl.lit(run))


def marks(*rows: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"_c": pl.Int64, "start_ns": pl.Int64}, orient="row")


def test_an_operator_that_ended_in_its_own_record_ends_there() -> None:
    ops = operators(("add", 10, 20, 5), ("mul", 30, 40, 6))
    assert ends(ops, marks((5, 19), (6, 39)), [("mul",), ()]).tolist() == [20, 40]


def test_an_operator_that_the_pool_runs_ends_when_its_result_is_taken() -> None:
    ops = operators(("conv", 10, 20, 5), ("other", 22, 25, 6), ("add", 70, 80, 7))
    told = marks((6, 24), (7, 79), (5, 95))  # the end is told only after what follows has run
    assert ends(ops, told, [("add",), (), ()]).tolist() == [70, 25, 80]


def test_an_operator_whose_result_nobody_takes_ends_where_that_is_told() -> None:
    ops = operators(("conv", 10, 20, 5))
    assert ends(ops, marks((5, 60)), [()]).tolist() == [60]
    assert ends(ops, marks(), [()]).tolist() == [20]


def test_a_result_is_taken_in_the_same_run() -> None:
    one, two = operators(("conv", 10, 20, 5)), operators(("add", 30, 40, 6), run=2)
    assert ends(pl.concat([one, two]), marks((5, 50), (6, 39)), [("add",), ()]).tolist() == [50, 40]


def test_in_a_loop_the_result_is_taken_by_the_next_round() -> None:
    ops = operators(("add", 5, 6, 1), ("conv", 10, 20, 5), ("add", 30, 40, 6), ("add", 60, 70, 8))
    told = marks((1, 6), (6, 39), (8, 69))
    assert ends(ops, told, [(), ("add",), (), ()]).tolist() == [6, 30, 40, 70]


def test_operators_at_once_are_on_threads_of_their_own() -> None:
    ops = operators(("a", 10, 20, 1), ("b", 21, 25, 2), ("c", 30, 40, 3), ("d", 90, 95, 4))
    thread = pl.Series([7, 7, 7, 7])
    found = lanes(ops, thread, ends(ops, marks((1, 80), (2, 60), (3, 39), (4, 94)), [()] * 4))
    assert found.to_list() == [-1, -2, 7, 7]
