from __future__ import annotations

import time

import gpu
import numpy as np
import polars as pl
import pytest
from gpu import EVERYTHING, MAIN, Gpu, Played, Step, Work, homes, launch, right_homes
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.provider.row import SpanRows, span_rows
from xsp.reading.correlation.parent import Trees, correlate

DEVICE = [*(kind.value for kind in DEVICE_ACTIVITIES), "sync"]


def found(correlated: Trees) -> dict[int, int]:
    return {made: home for frame in correlated.frames for made, home in homes(frame).items()}


def expected(played: Played) -> dict[int, int]:
    return right_homes(pl.concat([played.roots, played.rows]))


def on_device(played: Played) -> SpanRows:
    return played.rows.filter(pl.col("kind").is_in(DEVICE))


def names(frame: pl.DataFrame) -> list[tuple[str, str | None]]:
    """Return the name of each row, and of its parent."""
    name, parent = frame["name"].to_list(), frame["parent"].to_list()
    return [(own, name[at] if at >= 0 else None) for own, at in zip(name, parent, strict=True)]


@unhurried
@given(gpu.models(), st.integers(1, 3), st.booleans(), st.integers(0, 9))
def test_every_kernel_finds_its_way_back(
    model: tuple[Step, ...], evaluations: int, drain: bool, seed: int
) -> None:
    played = Gpu(model, drain=drain).play(evaluations)
    correlated = played.correlate(seed)
    assert found(correlated) == expected(played)
    assert (correlated.outside, correlated.unlaunched, correlated.ambiguous_parents) == (0, 0, 0)


@unhurried
@given(gpu.models(), st.sets(st.sampled_from(list(Kind)[1:5])), st.integers(0, 9))
def test_kernels_find_what_is_recorded_around_their_launch(
    model: tuple[Step, ...], left_out: set[Kind], seed: int
) -> None:
    kinds = EVERYTHING - left_out | {Kind.LAUNCH}
    played = Gpu(model, drain=False).play(2, frozenset(kinds))
    assert found(played.correlate(seed)) == expected(played)


@unhurried
@given(gpu.models(), st.integers(0, 9))
def test_what_a_device_did_stands_in_the_order_of_its_launches(
    model: tuple[Step, ...], seed: int
) -> None:
    # Ids are given in the order of the launches; on several threads times decide.
    played = Gpu([step for step in model if step.thread == MAIN], drain=False).play(2)
    for frame in played.correlate(seed).frames:
        assert (frame["parent"].to_numpy() < np.arange(frame.height)).all()
        # Ids were given in the order of the launches, on each thread.
        for _, part in frame.filter(pl.col("kind").is_in(DEVICE)).group_by("parent"):
            assert part["correlation_id"].is_sorted()


def test_a_kernel_that_runs_on_into_the_next_evaluation_belongs_to_its_own() -> None:
    slow = Step(Kind.OP, "mm", (launch(Work(length_ns=1_000_000)),))
    played = Gpu([Step(Kind.LAYER, "fc", (slow, slow))], drain=False).play(3)
    kernels = on_device(played)
    assert (kernels["start_ns"] > played.roots["end_ns"][2]).sum() >= 4
    correlated = played.correlate()
    assert found(correlated) == expected(played)
    counts = [(frame["kind"] == "kernel").sum() for frame in correlated.frames]
    assert counts == [2, 2, 2]
    assert correlated.outside == 0


def test_a_kernel_of_a_launch_outside_of_every_evaluation_is_left_out() -> None:
    played = Gpu([launch(Work(length_ns=10**6))], drain=False).play(2)
    later = Played(played.roots[1:], played.rows)
    correlated = later.correlate()
    assert correlated.outside == 2  # the launch and its kernel, which ends in the second
    assert correlated.frames[0]["kind"].to_list() == ["region", "launch", "kernel"]


def test_a_kernel_without_launch_becomes_an_orphan() -> None:
    played = Gpu([Step(Kind.OP, "mm", (launch(Work()),))]).play()
    lost = played.rows.filter(pl.col("kind") == "launch")["attr.made"][0]
    correlated = played.without(lost).correlate()
    assert names(correlated.frames[0]) == [
        ("predict", None),
        ("mm", "predict"),
        ("gemm", "predict"),
    ]
    assert (correlated.orphans, correlated.unlaunched) == (1, 1)


def test_the_nodes_of_a_graph_lie_in_its_launch_in_the_order_of_their_capture() -> None:
    nodes = [Work(f"n{i}", 50, stream=7 + i % 2, node=i) for i in (3, 1, 2)]
    model = [Step(Kind.LAYER, "net", (launch(*nodes, name="cudaGraphLaunch", twice=True),))]
    frame = Gpu(model).play().correlate().frames[0]
    assert names(frame)[3:] == [
        ("n1", "cudaGraphLaunch"),
        ("n2", "cudaGraphLaunch"),
        ("n3", "cudaGraphLaunch"),
        ("cucudaGraphLaunch", "cudaGraphLaunch"),
    ]


def test_an_id_of_two_launches_in_one_evaluation_is_contested() -> None:
    model = [Step(Kind.OP, name, (launch(Work(name)),)) for name in ("a", "b")]
    played = Gpu(model).play()
    ids = pl.when(pl.col("correlation_id").is_not_null()).then(1)
    correlated = Played(played.roots, played.rows.with_columns(correlation_id=ids)).correlate()
    assert correlated.ambiguous_parents == 2


def coroutines(*, overlap: bool) -> Trees:
    """Return a launch in the second of two layers on one thread, which may overlap."""
    rows = span_rows(
        {
            "kind": ["layer", "layer", "op", "launch", "kernel"],
            "name": ["first", "second", "mm", "go", "gemm"],
            "start_ns": [10, 30, 32, 35, 60],
            "end_ns": [50 if overlap else 30, 90, 45, 40, 80],
            "thread": [MAIN, MAIN, MAIN, MAIN, None],
            "device": [None, None, None, None, 0],
            "stream": [None, None, None, None, 7],
            "correlation_id": [None, None, None, 1, 1],
        }
    )
    root = {"kind": ["region"], "name": "predict", "start_ns": 0, "end_ns": 100, "thread": MAIN}
    return correlate(span_rows(root), rows)


def test_a_launch_in_two_spans_that_overlap_is_contested() -> None:
    assert coroutines(overlap=False).ambiguous_parents == 0
    correlated = coroutines(overlap=True)
    assert correlated.ambiguous_parents == 1
    assert dict(names(correlated.frames[0]))["gemm"] == "mm"


@pytest.mark.timing
def test_a_million_rows_of_launches_and_kernels_take_seconds() -> None:
    played = many(1_000_000)
    begin = time.perf_counter()
    correlated = correlate(played.roots, played.rows)
    took = time.perf_counter() - begin
    frame = correlated.frames[0]
    assert frame.height == 1_000_001
    parent = frame["parent"].to_numpy()
    kernels = np.flatnonzero(frame["kind"] == "kernel")
    assert (frame["kind"].gather(parent[kernels]) == "op").all()
    assert (frame["attr.op"].gather(parent[kernels]) == frame["attr.op"].gather(kernels)).all()
    assert took < 30  # three seconds on an idle machine


def many(count: int) -> Played:
    """Return operators of two launches with a kernel each, in layers of ten, shuffled."""
    ops = count // 5
    op = np.arange(ops)
    begin = 10 + op * 100
    launched = np.repeat(begin, 2) + np.tile([10, 50], ops)
    kernel = 50 + np.arange(2 * ops) * 60 + 100 * ops // 3
    layers = ops // 10
    shuffled = np.random.default_rng(0).permutation(ops + 4 * ops)
    ids = np.arange(2 * ops)
    rows = pl.DataFrame(
        {
            "kind": np.repeat(["op", "launch", "kernel"], [ops, 2 * ops, 2 * ops]),
            "name": np.repeat(["mm", "cudaLaunchKernel", "gemm"], [ops, 2 * ops, 2 * ops]),
            "start_ns": np.concatenate([begin, launched, kernel]),
            "end_ns": np.concatenate([begin + 90, launched + 20, kernel + 55]),
            "thread": np.repeat([MAIN, MAIN, -1], [ops, 2 * ops, 2 * ops]),
            "device": np.repeat([-1, -1, 0], [ops, 2 * ops, 2 * ops]),
            "correlation_id": np.concatenate([np.full(ops, -1), ids, ids]),
            "attr.op": np.concatenate([op, np.repeat(op, 2), np.repeat(op, 2)]),
        }
    )[shuffled]
    places = ("thread", "device", "correlation_id")
    nulls = [pl.when(pl.col(n) >= 0).then(n).alias(n) for n in places]
    rows = span_rows(rows.with_columns(nulls).to_dict())
    assert layers
    root = {"kind": ["region"], "name": "predict", "start_ns": 0, "end_ns": 10 + ops * 100}
    return Played(span_rows({**root, "thread": MAIN, "attr.op": -1}), rows)
