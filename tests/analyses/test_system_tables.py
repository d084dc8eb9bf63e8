"""Analyses and advice of the system level, on traces whose numbers are written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from samples import Node, layer, op, pipeline, trace

import xsp
from xsp.analyses import advice, layer_latency, off_cpu, page_faults, system_calls, thread_states

MS = 1_000_000


def states(running: float, runnable: float, blocked: float, **more: Any) -> dict[str, Any]:
    times = float(running * MS), float(runnable * MS), float(blocked * MS)
    known = dict(zip(("running_ns", "runnable_ns", "blocked_ns"), times, strict=True))
    return {**known, **more}


def thread(
    name: str, running: float, runnable: float = 0.0, blocked: float = 0.0, *, python: bool = True
) -> Any:
    counts = {"preempted": 1.0, "migrations": 0.0, "page_faults": None}
    return {"name": name, "python": python, **states(running, runnable, blocked), **counts}


def system_call(name: str, own_ns: int, calls: int, **about: Any) -> Node:
    known = {"calls": calls, "calls_per_step": float(calls), "steps_share": 1.0}
    return Node("syscall", name, own_ns, [], {**known, **about})


def network(root: dict[str, Any], fc: dict[str, Any], *below: Node, **metadata: Any) -> xsp.Trace:
    """Return a step of 20 ms, of which a layer takes 10."""
    inside = sum(node.latency_ns for node in below if not node.is_elsewhere)
    one = layer("fc", "Linear", *below, own_ns=10 * MS - inside, **fc)
    top = pipeline("predict", one, own_ns=10 * MS)
    top.attributes |= root
    return trace(top, **metadata)


def test_waits_are_those_of_a_span_less_those_inside() -> None:
    table = off_cpu(network(states(12, 5, 3, blocked_in="read"), states(5, 4, 1)))
    assert table["name"].to_list() == ["fc", "predict"]
    assert table["own_off_ns"].to_list() == [5 * MS, 3 * MS]
    assert table["off_pct"].to_list() == [50.0, 40.0]
    assert table["blocked_in"].to_list() == [None, "read"]


def test_states_of_one_occurrence_are_told_of_all() -> None:
    several = layer("fc", "Linear", own_ns=10 * MS, calls=5, **states(1, 0.5, 0.5))
    root = pipeline("predict", several, own_ns=0)
    root.attributes |= states(5, 2.5, 2.5)
    assert set(off_cpu(trace(root))["own_off_ns"].to_list()) == {5 * MS, 0.0}


def test_spans_that_nobody_watched_are_left_out() -> None:
    table = off_cpu(network(states(12, 5, 3), {}))
    assert table["name"].to_list() == ["predict"]


def test_threads_of_one_name_are_one_row() -> None:
    root = {
        "thread_states": [thread("MainThread", 10, 5), thread("python", 8), thread("python", 6)]
    }
    table = thread_states(network(states(10, 5, 5) | root, {}))
    assert table["thread"].to_list() == ["python", "MainThread"]
    assert table["threads"].to_list() == [2, 1]
    assert table["running_pct"].to_list() == [70.0, 50.0]
    assert table["page_faults"].to_list() == [None, None]


def test_system_calls_are_told_with_the_span_around() -> None:
    read = system_call("read", 2 * MS, 4, io_bytes=4096.0)
    table = system_calls(network({}, {}, read))
    [row] = table.rows(named=True)
    assert (row["name"], row["around"], row["calls"]) == ("read", "fc", 4)
    assert (row["call_ns"], row["share_pct"], row["io_bytes"]) == (0.5 * MS, 10.0, 4096)


def test_page_faults_of_a_layer_are_its_own() -> None:
    table = page_faults(network({"page_faults": 1000.0}, {"page_faults": 900.0}))
    assert dict(table.select("name", "own_page_faults").iter_rows()) == {"fc": 900, "predict": 100}
    assert table["estimated_ns"].to_list() == [900 * 1600, 100 * 1600]


@pytest.mark.parametrize("ask", [off_cpu, thread_states, system_calls, page_faults])
def test_a_trace_without_the_system_level_says_how_to_measure_it(ask: Any) -> None:
    with pytest.raises(xsp.AnalysisError, match="levels=5 on Linux"):
        ask(network({}, {}))


def test_other_analyses_are_not_changed_by_system_calls() -> None:
    plain = layer_latency(network({}, {}))
    called = layer_latency(network({}, {}, system_call("read", 2 * MS, 4)))
    assert plain.equals(called)


def found(case: xsp.Trace, rule: str) -> dict[str, Any] | None:
    rows = advice(case).filter(rule=rule).rows(named=True)
    return rows[0] if rows else None


def test_more_busy_threads_than_cpus_are_told_from_other_programs() -> None:
    environment = {"usable_cores": 2}
    four = [thread("MainThread", 8, 10), *[thread("python", 12, 6)] * 3]
    fights = network(states(8, 10, 2, thread_states=four), {}, environment=environment)
    told = found(fights, "more threads than CPUs")
    assert told is not None
    assert told["gain_ns"] == 10 * MS
    assert "4 busy threads" in told["evidence"]
    assert found(fights, "other programs on the CPUs") is None
    alone = [thread("MainThread", 8, 10)]
    pushed = network(states(8, 10, 2, thread_states=alone), {}, environment=environment)
    assert found(pushed, "other programs on the CPUs") is not None
    assert found(pushed, "more threads than CPUs") is None
    quiet = network(states(19, 1, 0, thread_states=alone), {}, environment=environment)
    assert found(quiet, "other programs on the CPUs") is None


@pytest.mark.parametrize(("runs", "python", "is_lock"), [
    (16, True, True),
    (1, True, False),  # another lock, whose owner sleeps
    (16, False, False),  # of a native library, which holds no interpreter
])  # fmt: skip
def test_a_lock_is_the_interpreters_where_a_busy_python_thread_gives_it_back(
    runs: float, python: bool, is_lock: bool
) -> None:
    threads = [thread("MainThread", 2), thread("tokenizer", runs, python=python)]
    held = states(2, 0, 18, blocked_in="futex", woken_by="tokenizer", thread_states=threads)
    told = found(network(held, {}), "interpreter's lock")
    assert (told is not None) == is_lock
    if told is not None:
        assert "tokenizer (18.0 ms)" in told["evidence"]


def test_workers_that_read_are_told_from_workers_that_compute() -> None:
    def loading(reads_ms: int) -> xsp.Trace:
        read = system_call("read", reads_ms * MS, 9, process_name="pt_data_worker")
        read.columns["thread"] = 7
        waits = Node("region", "data loading", 10 * MS, [read])
        return trace(pipeline("train", waits, own_ns=5 * MS))

    assert found(loading(8), "workers read files") is not None
    assert found(loading(1), "workers read files") is None


def test_page_faults_are_advice_from_two_percent_on() -> None:
    told = found(network({"page_faults": 1000.0}, {"page_faults": 900.0}), "page faults")
    assert told is not None
    assert "fc" in told["evidence"] or "1,000 page faults" in told["evidence"]
    assert found(network({"page_faults": 100.0}, {}), "page faults") is None
    # Where nothing is given back to the system, an allocator is not the reason.
    for call, is_allocator in (("munmap", True), ("read", False)):
        some = network({"page_faults": 1000.0}, {}, system_call(call, MS, 3))
        assert (found(some, "page faults") is not None) == is_allocator


def test_the_tree_says_for_what_a_thread_waited() -> None:
    waits = states(12, 5, 3, blocked_in="futex", woken_by="pt_worker")
    text = network(waits, states(8, 2, 0), op("aten::mm")).tree(width=120)
    assert "off the CPU  5.00 ms runnable, 3.00 ms blocked in futex, woken by pt_worker" in text
    assert "off the CPU" not in network(states(20, 0, 0), states(10, 0, 0)).tree()
