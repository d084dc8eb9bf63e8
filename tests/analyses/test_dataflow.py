"""Waits of operators and what threads could reach: known answers, simulated executors, errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import polars as pl
import pytest
from graph_executor import Operator, execute, op_row, random_graph, traced, with_run
from hand_made import row, trace_of
from hypothesis import given
from hypothesis import strategies as st
from samples import op, pipeline
from samples import trace as sample

import xsp
from xsp.analyses import advice, critical_path, parallelism, scheduling
from xsp.answer.analyses.dataflow.graph import graph_runs
from xsp.answer.analyses.device.path.graph import graph_of
from xsp.answer.analyses.device.path.longest_path import in_order, reached
from xsp.answer.analyses.tree import Tree

SEEDS = st.integers(0, 10_000)


def waits(trace: xsp.Trace) -> dict[str, tuple[float, float, str | None]]:
    """Return when each node was ready, how long it waited, and behind which other."""
    table = scheduling(trace)
    columns = table.select("node", "ready_ns", "wait_ns", "behind")
    return {node: (ready, wait, behind) for node, ready, wait, behind in columns.iter_rows()}


def test_an_operator_waits_behind_what_its_thread_ran_longest() -> None:
    a, b = Operator("a", [], 10), Operator("b", [], 60)
    c, d = Operator("c", [], 5), Operator("d", ["a", "b"], 7)
    b.start_ns, c.start_ns, d.thread, d.start_ns = 10, 70, 1, 90
    table = scheduling(traced([a, b, c, d]))
    assert table.rows() == [
        ("Gemm", "c", 1, 0.0, 70.0, "b"),
        ("Gemm", "d", 1, 70.0, 20.0, None),  # its thread was idle: the executor's time
        ("Gemm", "b", 1, 0.0, 10.0, "a"),
        ("Gemm", "a", 1, 0.0, 0.0, None),
    ]


@given(SEEDS, st.integers(1, 5), st.sampled_from([0, 3, 100]))
def test_waits_are_those_of_the_executor(seed: int, threads: int, slowest_ns: int) -> None:
    chance = random.Random(seed)
    ran = execute(random_graph(chance, 30), threads, chance, slowest_ns)
    found = waits(traced(ran))
    for each in ran:
        ready, wait, behind = found[each.name]
        assert (ready, wait) == (each.ready_ns, each.wait_ns)
        beside = {
            other.name: other.end_ns - max(other.start_ns, each.ready_ns) for other in each.before
        }
        idle = each.wait_ns - sum(time for time in beside.values() if time > 0)
        most = max(beside.values(), default=0)
        assert behind is None if most <= idle else beside[str(behind)] == most


@given(SEEDS, st.integers(1, 4))
def test_times_are_without_the_profiler_where_the_run_was_slowed_down(
    seed: int, threads: int
) -> None:
    chance = random.Random(seed)
    trace = traced(execute(random_graph(chance, 20), threads, chance))
    assert waits(with_run(trace, 3)) == waits(trace)


def test_an_operator_that_the_typical_run_lacks_is_looked_through() -> None:
    a, b, c = Operator("a", [], 10), Operator("b", ["a"], 1), Operator("c", ["b"], 10)
    b.start_ns, c.start_ns = 10, 15
    trace = with_run(traced([a, b, c]), 1, lost=["b"])
    assert waits(trace) == {"a": (0.0, 0.0, None), "c": (10.0, 5.0, None)}


def test_a_node_that_a_loop_runs_again_takes_the_latest_of_its_inputs() -> None:
    first, again = Operator("a", [], 10), Operator("a", [], 10)
    inside, after = Operator("b", ["a"], 5), Operator("b", ["a"], 5)
    for each, start in ((inside, 10), (again, 20), (after, 33)):
        each.start_ns = start
    table = scheduling(traced([first, inside, again, after])).filter(pl.col("node") == "b")
    assert table.rows() == [("Gemm", "b", 2, 10.0, 3.0, None)]


def test_operators_in_an_operator_of_the_graph_are_a_part_of_it() -> None:
    a, branch = Operator("a", [], 10), Operator("if", [], 30)
    inner, last = Operator("then", ["a"], 20), Operator("b", ["if"], 5)
    for each, start in ((branch, 12), (inner, 13), (last, 45)):
        each.start_ns = start
    rows = [row(None, "region", "step", 50), *map(op_row, (a, branch)), op_row(inner, 2)]
    trace = trace_of([*rows, op_row(last)])
    assert waits(trace) == {"a": (0, 0, None), "if": (10, 2, None), "b": (42, 3, None)}


def test_an_operator_whose_inputs_are_not_known_follows_the_one_before_on_its_thread() -> None:
    a, b, c = Operator("a", [], 10), Operator("b", [], 10), Operator("c", ["b"], 10)
    b.start_ns, c.start_ns = 10, 20
    rows = [row(None, "region", "step", 30), *map(op_row, (a, b, c))]
    rows[2]["inputs"] = None
    table = parallelism(trace_of(rows))
    assert table.filter(pl.col("threads").is_null())["latency_ns"].item() == 30.0


def test_graphs_that_follow_each_other_do_not_run_at_once() -> None:
    a, b = Operator("a", [], 10), Operator("a", [], 20)
    b.start_ns = 10
    rows = [row(None, "region", "step", 30)]
    rows += [row(0, "region", "run", each.latency_ns, start_ns=each.start_ns) for each in (a, b)]
    trace = trace_of([*rows, op_row(a, 1), op_row(b, 2)])
    table = parallelism(trace)
    assert table.select("threads", "latency_ns", "measured_ns").rows() == [
        (1, 30.0, 30.0),
        (None, 30.0, None),
    ]


@given(SEEDS, st.integers(1, 5))
def test_threads_reach_what_theory_allows(seed: int, threads: int) -> None:
    chance = random.Random(seed)
    ran = execute(random_graph(chance, 40), threads, chance)
    table = parallelism(traced(ran))
    work = sum(each.latency_ns for each in ran)
    ends: dict[str, int] = {}
    for each in sorted(ran, key=lambda one: int(one.name[1:])):
        ends[each.name] = each.latency_ns + max((ends[name] for name in each.inputs), default=0)
    path = max(ends.values())
    times = dict(table.select("threads", "latency_ns").rows())
    assert (times.pop(None), times[1]) == (path, work)
    for number, time in times.items():
        assert max(path, work / number) <= time <= work / number + path * (1 - 1 / number)
    used = table.filter("used")
    assert used["threads"].item() == len({each.thread for each in ran})
    assert used["measured_ns"].item() == max(each.end_ns for each in ran)


@given(SEEDS, st.integers(1, 5))
def test_many_small_operators_take_on_the_recorded_threads_what_was_measured(
    seed: int, threads: int
) -> None:
    chance = random.Random(seed)
    graph = random_graph(chance, 300)
    for each in graph:
        each.inputs = [name for name in each.inputs if int(each.name[1:]) - int(name[1:]) > 30]
        each.latency_ns = chance.randrange(10, 30)
    used = parallelism(traced(execute(graph, threads, chance))).filter("used")
    assert used["latency_ns"].item() == pytest.approx(used["measured_ns"].item(), rel=0.1)
    assert used["problem"].item() is None


def test_a_latency_that_operators_do_not_explain_is_a_problem() -> None:
    trace = traced(execute([Operator("a", [], 80)], 1, random.Random(0)), around_ns=20)
    problem = parallelism(trace).filter("used")["problem"].item()
    assert problem.startswith("20.0 ns, 20.0 %, of what was measured is not explained by operators")


def test_a_trace_without_inputs_is_told_what_to_measure() -> None:
    eager = sample(pipeline("predict", op("aten::add")), name="adder")
    for analysis in (scheduling, parallelism):
        with pytest.raises(xsp.AnalysisError, match="adder has no known inputs of operators: meas"):
            analysis(eager)


def test_sums_of_several_calls_are_no_run_of_a_graph() -> None:
    rows = [row(None, "region", "step", 9), op_row(Operator("a", [], 9), calls=3)]
    with pytest.raises(xsp.AnalysisError, match="measure one call of a graph"):
        scheduling(trace_of(rows))


@given(SEEDS, st.integers(1, 4), st.sampled_from([0, 3, 100]))
def test_the_critical_path_follows_the_data(seed: int, threads: int, slowest_ns: int) -> None:
    chance = random.Random(seed)
    trace = traced(execute(random_graph(chance, 30), threads, chance, slowest_ns), around_ns=7)
    graph = graph_of(Tree.of(trace), graph_runs(trace))
    points, order = in_order(graph.points)
    assert np.array_equal(points.cross, graph.points.cross)
    times = (each[:, None].astype(np.float64) for each in (points.weight, points.delay))
    known = (points.weight > 0) | (points.cross >= 0)  # others are marks that nothing waits for
    assert np.array_equal(reached(points, order, *times)[known, 0], points.time[known])
    table = critical_path(trace)
    kinds = table.filter(pl.col("name").is_null())
    assert kinds["time_ns"].sum() == trace.spans["end_ns"].max()
    assert set(kinds["kind"]) <= {"region", "op", "data", "executor", "thread"}
    gained = table.drop_nulls("gain_ns")
    assert (gained["gain_ns"] >= 0).all()
    assert (gained["gain_ns"] <= gained["time_ns"]).all()


def branched(framework: str, used: int, idle_ns: int = 0, **more: Any) -> xsp.Trace:
    """Return four operators that take nothing, of 1 ms each, on some threads, the last one late."""
    chance = random.Random(0)
    ran = execute([Operator(f"n{at}", [], 1_000_000) for at in range(4)], used, chance)
    ran[-1].start_ns += idle_ns
    rows = [op_row(each, framework=framework, **more) for each in ran]
    whole = max(each.end_ns for each in ran)
    ends = {"latency_low_ns": whole - 100_000.0, "latency_high_ns": whole + 100_000.0}
    return trace_of([row(None, "region", "step", whole, **ends), *rows], environment=ENVIRONMENT)


ENVIRONMENT = {"usable_cores": 4.0, "frameworks": {"tensorflow": {"threads": 2}}}


def at_once(trace: xsp.Trace) -> list[tuple[str, float]]:
    found = advice(trace).filter(pl.col("rule") == "operators at once")
    return found.select("advice", "gain_ns").rows()


def test_more_threads_are_advised_as_far_as_there_are_cores_for_them() -> None:
    parallel = "Run more operators at once: execution_mode = ORT_PARALLEL, inter_op_num_threads"
    streams = "and a stream for each branch in the file session.node_partition_config_file."
    assert at_once(branched("onnxruntime", 1, threads=1)) == [(f"{parallel} = 5, {streams}", 3e6)]
    assert at_once(branched("onnxruntime", 1, threads=2)) == [(f"{parallel} = 3, {streams}", 2e6)]
    assert at_once(branched("onnxruntime", 1, threads=4)) == []
    more = "Run more operators at once: inter_op_parallelism_threads = 2."
    assert at_once(branched("tensorflow", 1)) == [(more, 2e6)]
    assert at_once(branched("tensorflow", 2)) == []
    assert at_once(branched("jax", 1)) == []  # has no such setting


def test_fewer_threads_are_advised_where_more_took_longer_than_one_would() -> None:
    fewer = "Run fewer operators at once: execution_mode = ORT_SEQUENTIAL."
    slow = branched("onnxruntime", 4, idle_ns=5_000_000, threads=1)
    assert at_once(slow) == [(fewer, 2e6)]
    assert at_once(branched("onnxruntime", 4, idle_ns=3_050_000, threads=1)) == []  # is noise
