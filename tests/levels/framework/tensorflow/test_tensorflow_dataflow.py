"""Inputs of TensorFlow's operators, and their waits beside what its executor says itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from device_samples import Row, host, timeline

from xsp.analyses import scheduling
from xsp.clock import SystemClock
from xsp.trace import Trace
from xsp_levels.framework.tensorflow.profiler.operator import OperatorRecorder, operator_rows

tf = pytest.importorskip("tensorflow")


def inputs_of(call: Callable[[], Any]) -> dict[str, list[str] | None]:
    """Return the inputs of each node that a call runs, by the node's name."""
    call()
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), detail=False, whole=True)
    recorder.anchor_thread()
    try:
        call()
    finally:
        records = recorder.stop()
    rows = operator_rows(records).filter(pl.col("attr.node").is_not_null())
    return dict(rows.select("attr.node", "attr.inputs").iter_rows())


def test_inputs_lead_through_fused_nodes_variables_and_called_functions() -> None:
    weight, bias = tf.Variable(tf.ones((64, 64))), tf.Variable(tf.ones(64))
    inner = tf.function(lambda given: tf.nn.bias_add(tf.matmul(given, weight, name="a"), bias))

    @tf.function  # type: ignore[untyped-decorator]
    def branches(given: Any) -> Any:
        first = tf.nn.relu(inner(given), name="first")
        return tf.add_n([tf.matmul(first, weight, name=name) for name in ("b", "c")], name="sum")

    found = inputs_of(lambda: branches(tf.ones((64, 64))))
    last = next(node for node in found if node.endswith("sum"))
    assert sorted(found[last] or ()) == ["b", "c"]
    # Whatever TensorFlow fuses of them, these lead to the product in the function that was called.
    way, rest = set(), ["b"]
    while rest:
        way.add(node := rest.pop())
        rest += found[node] or []
    assert found["b"] == found["c"]
    assert len(way) > 1
    assert way <= found.keys()
    assert any("PartitionedCall/" in node for node in way)


def test_inputs_of_what_takes_the_result_of_a_loop_or_a_branch_are_not_known() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def looping(given: Any) -> Any:
        made = tf.matmul(given, given, name="first")
        body = (lambda at, value: at < 3, lambda at, value: (at + 1, tf.matmul(value, given)))
        _, made = tf.while_loop(*body, [0, made])
        after = tf.matmul(made, made, name="after_loop")
        ends = (lambda: tf.sin(after), lambda: tf.cos(after))
        return tf.matmul(tf.cond(given[0, 0] > 0, *ends), after, name="after_branch")

    found = inputs_of(lambda: looping(tf.eye(64)))
    assert found["first"] == []
    assert found["after_loop"] is None
    assert found["after_branch"] is None


def test_inputs_of_a_program_that_xla_compiled_are_its_instructions() -> None:
    compiled = tf.function(lambda given: tf.matmul(tf.sin(given @ given), given), jit_compile=True)
    found = inputs_of(lambda: compiled(tf.ones((64, 64))))
    assert any(found.values())
    assert {each for sources in found.values() for each in sources or ()} <= found.keys()


def test_waits_are_those_that_the_executor_tells() -> None:
    graph = tf.Graph()
    with graph.as_default():
        given = [tf.compat.v1.placeholder(tf.float32, (128, 128)) for _ in range(4)]
        ends = []
        for branch, first in enumerate(given):
            second = tf.linalg.matmul(first, first, name=f"m{branch}0")
            third = tf.linalg.matmul(second, first, name=f"m{branch}1")
            ends.append(tf.linalg.matmul(third, first, name=f"m{branch}2"))
        made = tf.add_n(ends, name="sum")
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=2, intra_op_parallelism_threads=1
    )
    options = tf.compat.v1.RunOptions(
        trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True
    )
    feed = dict.fromkeys(given, np.full((128, 128), 1 / 128, np.float32))
    apart: dict[str, list[float]] = {}
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        session.run(made, feed)
        for _ in range(9):
            told = tf.compat.v1.RunMetadata()
            session.run(made, feed, options, told)
            statistics = told.step_stats.dev_stats[0].node_stats
            waits = dict(scheduling(_trace(statistics, told.partition_graphs[0].node))
                         .select("node", "wait_ns").iter_rows())  # fmt: skip
            for each in statistics:
                own = each.all_start_nanos - each.scheduled_nanos
                apart.setdefault(each.node_name, []).append(abs(waits[each.node_name] - own))
    taking = ["sum", *(f"m{branch}{depth}" for branch in range(4) for depth in (1, 2))]
    # A thread may be interrupted between the end of an operator and the news of it, in some runs.
    assert {name: np.median(apart[name]) for name in taking if np.median(apart[name]) > 1_000} == {}


def _trace(statistics: Sequence[Any], nodes: Sequence[Any]) -> Trace:
    """Return the trace of a session's run, each operator on a thread of its own."""
    sources = {
        node.name: [each.removeprefix("^").partition(":")[0] for each in node.input]
        for node in nodes
    }
    first = min(each.all_start_nanos for each in statistics)
    rows: list[Row] = []
    for thread, each in enumerate(statistics, 2):
        name, start = each.node_name, each.all_start_nanos - first
        told = {"node": name, "inputs": sources.get(name, []), "thread": thread}
        rows.append(host("op", name, start, start + each.all_end_rel_nanos, **told))
    return timeline(max(row["end_ns"] for row in rows), *rows)
