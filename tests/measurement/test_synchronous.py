from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import gpu
import polars as pl
import pytest
from gpu import EVERYTHING, MAIN, WORKER, Gpu, Played, Step, Work, homes, launch, right_homes
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching.run import Pass, Run, ladder
from xsp.matching.tree_row import is_ambiguous
from xsp.provider.row import SpanRows, span_rows
from xsp.reading.correlation.parent import correlate
from xsp.reading.merge.assembly import Merged, merge
from xsp.reading.runs import synchronous
from xsp.trace import integrity

WORKING = [kind.value for kind in DEVICE_ACTIVITIES]
DEEPEST = ladder(EVERYTHING)[-1]


@dataclass(frozen=True)
class Resolution:
    runs: Sequence[Run]
    resolved: dict[str, int]

    @property
    def remaining(self) -> int:
        """Number of rows that are still ambiguous."""
        return sum(int(is_ambiguous(run.rows).sum()) for run in self.runs if run.rows is not None)


def resolve(runs: Sequence[Run], waiting: Sequence[Run]) -> Resolution:
    moved, told = synchronous.resolve(runs, waiting)
    assert {pass_ for _, pass_ in told} <= {run.pass_.name for run in runs}
    return Resolution(moved, {code: count for (code, _), count in told.items()})


def run_of(frame: pl.DataFrame, pass_: Pass = DEEPEST, latency_ns: int = 100) -> Run:
    return Run(pass_, latency_ns, frame)


def frame_of(settled: Resolution, number: int = 0) -> pl.DataFrame:
    frame = settled.runs[number].rows
    assert frame is not None
    return frame


def names(frame: pl.DataFrame) -> dict[str, str | None]:
    """Return the name of each row's parent, by its own name."""
    name, parent = frame["name"].to_list(), frame["parent"].to_list()
    return {own: name[at] if at >= 0 else None for own, at in zip(name, parent, strict=True)}


def launch_rows(played: Played, *names: str) -> list[int]:
    """Return the numbers of all launches, or those of some names, that launch no graph."""
    nodes = played.rows.filter(pl.col("attr.graph_node").is_not_null())["correlation_id"]
    made = played.rows.filter(
        (pl.col("kind") == "launch") & ~pl.col("correlation_id").is_in(nodes.implode())
    )
    return (made.filter(pl.col("name").is_in(names)) if names else made)["attr.made"].to_list()


def assert_in_order(frame: pl.DataFrame) -> None:
    parent = frame["parent"]
    assert parent[0] == -1
    assert (parent.to_numpy() < range(frame.height)).all()


# Kernels whose launch was lost.


@unhurried
@given(gpu.models(), st.data(), st.booleans())
def test_a_kernel_without_launch_gets_the_parent_it_has_where_the_host_waits(
    model: tuple[Step, ...], data: st.DataObject, lost_there_too: bool
) -> None:
    # On two threads it depends on time which of equal siblings is the first.
    model = tuple(step for step in model if step.thread == MAIN)
    played = Gpu(model).play()
    launches = launch_rows(played)
    lost = data.draw(st.lists(st.sampled_from(launches), unique=True) if launches else st.just([]))
    ids = played.rows.filter(pl.col("attr.made").is_in(lost))["correlation_id"].to_list()
    # A call of the driver bears the id of the runtime's around it: both are lost.
    everything = played.rows.filter(pl.col("kind") == "launch", pl.col("correlation_id").is_in(ids))
    here = played.without(*everything["attr.made"]).correlate().frames[0]
    there = Gpu(model, blocking=True).play()
    there = there.without(*everything["attr.made"]) if lost_there_too else there

    settled = resolve([run_of(here)], [run_of(there.correlate(synchronous=True).frames[0])])

    frame = frame_of(settled)
    assert_in_order(frame)
    known = frame.filter(
        (pl.col("kind") != "sync") | ~pl.col("correlation_id").is_in(ids).fill_null(value=False)
    )["attr.made"]
    assert {made: homes(frame)[made] for made in known} == {
        made: right_homes(frame)[made] for made in known
    }
    assert settled.remaining == 0
    orphans = int(is_ambiguous(here).sum())
    assert settled.resolved == ({"no-launch": orphans} if orphans else {})


def test_without_a_synchronous_run_it_hangs_under_the_root() -> None:
    model = [Step(Kind.LAYER, "fc", (Step(Kind.OP, "mm", (launch(Work()),)),))]
    played = Gpu(model).play()
    here = played.without(*launch_rows(played)).correlate().frames[0]
    assert names(here)["gemm"] == "predict"
    assert here.filter(is_ambiguous(here))["name"].to_list() == ["gemm"]
    alone = resolve([run_of(here)], [])
    assert (alone.runs[0].rows is here, alone.resolved) == (True, {})
    assert alone.remaining == 1
    # Time says nothing where the host does not wait.
    asynchronous = resolve([run_of(here)], [run_of(here)])
    assert names(frame_of(asynchronous))["gemm"] == "predict"
    blocking = Gpu(model, blocking=True).play().correlate(synchronous=True).frames[0]
    assert names(frame_of(resolve([run_of(here)], [run_of(blocking)])))["gemm"] == "mm"


def test_a_kernel_that_the_user_launches_outside_of_everything_is_settled_where_it_is() -> None:
    played = Gpu([launch(Work()), Step(Kind.LAYER, "fc")]).play()
    here = played.without(*launch_rows(played)).correlate().frames[0]
    there = Gpu([launch(Work()), Step(Kind.LAYER, "fc")], blocking=True).play()
    serial = there.without(*launch_rows(there)).correlate(synchronous=True)
    settled = resolve([run_of(here)], [run_of(serial.frames[0])])
    assert names(frame_of(settled))["gemm"] == "predict"
    assert (settled.resolved, settled.remaining) == ({"no-launch": 1}, 0)


TWO = [
    Step(Kind.OP, "a", (launch(Work("gemm", 700)),)),
    Step(Kind.OP, "b", (launch(Work("gemm", 300)), launch(Work("gemm", 100)))),
]


def test_where_the_counts_differ_nothing_moves_and_doubt_remains() -> None:
    played = Gpu(TWO).play()
    here = played.without(*launch_rows(played)[:1]).correlate().frames[0]
    longer = [*TWO, Step(Kind.OP, "c", (launch(Work("gemm")),))]
    there = Gpu(longer, blocking=True).play().correlate(synchronous=True).frames[0]
    settled = resolve([run_of(here)], [run_of(there)])
    assert homes(frame_of(settled)) == homes(here)
    assert (settled.resolved, settled.remaining) == ({}, 1)


def test_what_is_in_doubt_in_the_synchronous_run_settles_nothing() -> None:
    played = Gpu(TWO).play()
    lost = launch_rows(played)[:1]
    here = played.without(*lost).correlate().frames[0]
    there = Gpu(TWO, blocking=True).play().without(*lost).correlate()  # by time, as ever
    settled = resolve([run_of(here)], [run_of(there.frames[0])])
    assert homes(frame_of(settled)) == homes(here)
    assert settled.remaining == 1


def test_a_parent_that_this_run_does_not_have_moves_nothing() -> None:
    played = Gpu(TWO).play()
    here = played.without(*launch_rows(played)[:1]).correlate().frames[0]
    other = [replace(step, name=f"other {step.name}") for step in TWO]
    there = Gpu(other, blocking=True).play().correlate(synchronous=True).frames[0]
    settled = resolve([run_of(here)], [run_of(there)])
    assert homes(frame_of(settled)) == homes(here)
    assert settled.remaining == 1


def on_two_threads(*lost: int, other_first: bool = False) -> pl.DataFrame:
    """Return operators on two threads that launch a kernel of one name on one stream each."""
    late, early = (3000, 100) if other_first else (100, 3000)
    rows: list[dict[str, Any]] = []
    for name, thread, at, number in (("mine", MAIN, late, 1), ("other", WORKER, early, 2)):
        rows.append({"kind": "op", "name": name, "start_ns": at, "end_ns": at + 1500})
        own = {"kind": "launch", "name": "go", "start_ns": at + 10, "end_ns": at + 1400}
        rows += [own | {"correlation_id": number}] if number not in lost else []
        rows = [row | {"thread": row.get("thread", thread)} for row in rows]
        kernel = {"kind": "kernel", "name": "gemm", "start_ns": at + 100, "end_ns": at + 300}
        rows.append(kernel | {"device": 0, "stream": 7, "correlation_id": number, "thread": None})
    root = {"kind": ["region"], "name": "predict", "start_ns": 0, "end_ns": 9000, "thread": MAIN}
    made = pl.DataFrame(rows, infer_schema_length=None)
    observed = span_rows({name: made[name] for name in made.columns})
    return correlate(span_rows(root), observed, synchronous=other_first).frames[0]


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2)])
def test_threads_that_share_a_stream_are_not_told_apart_by_order(lost: tuple[int, ...]) -> None:
    run, there = run_of(on_two_threads(*lost)), run_of(on_two_threads(other_first=True))
    found = resolve([run], [there])
    assert found.resolved == {}
    assert found.remaining == len(lost)
    kernels = frame_of(found).filter(pl.col("kind") == "kernel")
    parents = frame_of(found)["name"].gather(kernels["parent"])
    homes = {1: "mine", 2: "other"} | dict.fromkeys(lost, "predict")
    assert dict(zip(kernels["correlation_id"], parents, strict=True)) == homes


def test_the_nodes_of_a_graph_whose_launch_was_lost_do_not_go_to_another_launch() -> None:
    graphs = [launch(Work(name, node=1), name="cudaGraphLaunch") for name in ("n1", "n2")]
    model = [Step(Kind.LAYER, "net", tuple(graphs))]
    played = Gpu(model).play()
    first = played.rows.filter(pl.col("kind") == "launch")["attr.made"][0]
    here = played.without(first).correlate().frames[0]
    there = Gpu(model, blocking=True).play().correlate(synchronous=True).frames[0]
    settled = resolve([run_of(here)], [run_of(there)])
    assert names(frame_of(settled))["n1"] == "predict"
    assert settled.remaining == 1


# Launches in spans that cross.


def crossing(*, crossed: bool, op: str | None = None) -> pl.DataFrame:
    """Return two layers with a launch that is the first one's, and its kernel."""
    rows: dict[str, list[Any]] = {
        "kind": ["layer", "layer", "launch", "launch", "kernel"],
        "name": ["first", "second", "go", "cugo", "gemm"],
        "start_ns": [10, 30 if crossed else 60, 35, 36, 60],
        "end_ns": [50, 90, 40, 39, 80],
        "thread": [MAIN, MAIN, MAIN, MAIN, None],
        "device": [None, None, None, None, 0],
        "stream": [None, None, None, None, 7],
        "correlation_id": [None, None, 1, 1, 1],
    }
    if op is not None:
        for name, value in {"kind": "op", "name": op, "start_ns": 34, "end_ns": 41}.items():
            rows[name].append(value)
        for name in ("thread", "device", "stream", "correlation_id"):
            rows[name].append(MAIN if name == "thread" else None)
    root = {"kind": ["region"], "name": "predict", "start_ns": 0, "end_ns": 100, "thread": MAIN}
    correlated = correlate(span_rows(root), span_rows(rows), synchronous=not crossed)
    assert correlated.ambiguous_parents == (2 if crossed else 0)  # the driver's call is one of them
    return correlated.frames[0]


def test_a_launch_moves_to_the_span_it_lies_in_where_no_other_crosses_with_what_it_launched() -> (
    None
):
    here = crossing(crossed=True)
    assert {names(here)["go"], names(here)["gemm"]} == {"second"}
    settled = resolve([run_of(here)], [run_of(crossing(crossed=False))])
    frame = frame_of(settled)
    assert_in_order(frame)
    expected = {"first": "predict", "second": "predict", "go": "first", "cugo": "go"}
    assert names(frame) == {**expected, "predict": None, "gemm": "first"}
    assert (settled.resolved, settled.remaining) == ({"ambiguous": 2}, 0)
    assert not is_ambiguous(frame).any()


def test_a_launch_does_not_move_to_a_span_that_does_not_enclose_it() -> None:
    here = crossing(crossed=True)
    away = pl.when(pl.col("name") == "first").then(38).otherwise("end_ns").alias("end_ns")
    settled = resolve([run_of(here.with_columns(away))], [run_of(crossing(crossed=False))])
    assert names(frame_of(settled))["go"] == "second"
    assert settled.remaining == 2


def test_a_launch_inside_of_an_operator_stays_in_it() -> None:
    here = crossing(crossed=True, op="mm")
    settled = resolve([run_of(here)], [run_of(crossing(crossed=False, op="mm"))])
    assert names(frame_of(settled)) == names(here)
    assert names(here)["go"] == "mm"


def test_an_id_of_two_launches_is_settled_where_ids_differ() -> None:
    played = Gpu(TWO).play()
    ids = pl.when(pl.col("correlation_id").is_not_null()).then(1).alias("correlation_id")
    here = Played(played.roots, played.rows.with_columns(ids)).correlate()
    assert here.ambiguous_parents == 3
    there = Gpu(TWO, blocking=True).play().correlate(synchronous=True).frames[0]
    settled = resolve([run_of(here.frames[0])], [run_of(there)])
    frame = frame_of(settled)
    kernels = frame.filter(pl.col("kind") == "kernel")["attr.made"]
    assert [homes(frame)[made] for made in kernels] == [right_homes(frame)[m] for m in kernels]
    assert settled.resolved == {"ambiguous": 3}


# Library calls without a thread.


def calls(*, parallel: bool, nested: bool = False) -> pl.DataFrame:
    """Return two operators, on two threads or one after the other, with a call of the second's."""
    start = 30 if parallel else 65
    rows = span_rows(
        {
            "kind": ["op", "op", "call", "call"],
            "name": ["mine", "other", "sgemm", "part"],
            "start_ns": [10, 20 if parallel else 60, start, start + 4],
            "end_ns": [50, 80, start + 12, start + 8],
            "thread": [MAIN, WORKER, None, None],
            "uncertainty_ns": [None, None, 2, None],
        }
    )
    root = {"kind": ["region"], "name": "predict", "start_ns": 0, "end_ns": 100, "thread": MAIN}
    correlated = correlate(span_rows(root), rows if nested else rows[:3])
    assert correlated.ambiguous_threads == parallel * (1 + nested)
    return correlated.frames[0]


def test_a_call_of_an_unknown_thread_moves_to_the_operator_that_makes_it_alone() -> None:
    here = calls(parallel=True)
    assert names(here)["sgemm"] == "mine"
    settled = resolve([run_of(here)], [run_of(calls(parallel=False))])
    frame = frame_of(settled)
    assert_in_order(frame)
    assert names(frame)["sgemm"] == "other"
    assert frame.filter(pl.col("name") == "sgemm")["thread"].to_list() == [WORKER]
    assert (settled.resolved, settled.remaining) == ({"ambiguous-thread": 1}, 0)


def test_a_call_is_cut_to_the_operator_that_it_moves_to() -> None:
    late = pl.when(pl.col("name") == "other").then(41).otherwise("end_ns").alias("end_ns")
    here = calls(parallel=True).with_columns(late)
    frame = frame_of(resolve([run_of(here)], [run_of(calls(parallel=False))]))
    assert names(frame)["sgemm"] == "other"
    assert frame.filter(pl.col("name") == "sgemm").select("start_ns", "end_ns").row(0) == (30, 41)


def test_a_call_during_another_moves_with_it() -> None:
    here = calls(parallel=True, nested=True)
    settled = resolve([run_of(here)], [run_of(calls(parallel=False, nested=True))])
    found = names(frame_of(settled))
    assert (found["sgemm"], found["part"]) == ("other", "other")
    assert (settled.resolved, settled.remaining) == ({"ambiguous-thread": 2}, 0)
    # It moves by its self time, also where the other one stays in doubt.
    early = pl.when(pl.col("name") == "other").then(39).otherwise("end_ns").alias("end_ns")
    there = run_of(calls(parallel=False, nested=True))
    assert resolve([run_of(here.with_columns(early))], [there]).resolved == {"ambiguous-thread": 1}


def test_a_call_does_not_move_where_its_time_was_never() -> None:
    early = pl.when(pl.col("name") == "other").then(35).otherwise("end_ns").alias("end_ns")
    settled = resolve(
        [run_of(calls(parallel=True).with_columns(early))], [run_of(calls(parallel=False))]
    )
    assert names(frame_of(settled))["sgemm"] == "mine"
    assert settled.remaining == 1


# Runs.


def test_runs_in_no_doubt_are_the_same_objects() -> None:
    plain = run_of(Gpu(TWO).play().correlate().frames[0])
    bare = Run(ladder(EVERYTHING)[0], 90)
    ambiguous = run_of(crossing(crossed=True))
    settled = resolve([bare, plain, ambiguous], [run_of(crossing(crossed=False))])
    assert settled.runs[0] is bare
    assert settled.runs[1] is plain
    assert settled.runs[2] is not ambiguous


def test_the_typical_run_of_the_deepest_pass_is_the_one_that_settles() -> None:
    played = Gpu(TWO).play()
    here = played.without(*launch_rows(played)[:1]).correlate().frames[0]
    there = Gpu(TWO, blocking=True).play().correlate(synchronous=True).frames[0]
    strange = Gpu([*TWO, *TWO], blocking=True).play().correlate(synchronous=True).frames[0]
    shallow = [Run(ladder(EVERYTHING)[1], 5, strange[:1])] * 3
    detail = [run_of(strange, replace(DEEPEST, detail=True))] * 3
    runs = [*shallow, *detail, *(run_of(frame) for frame in (strange, there, there))]
    assert resolve([run_of(here)], runs).resolved == {"no-launch": 1}


def lossy(model: Sequence[Step], rounds: int, lost: Iterator[int]) -> list[Run]:
    """Return the runs of the ladder; in each of the deepest one launch is lost."""
    device = Gpu(model)
    runs = []
    for number, pass_ in [(n, pass_) for n in range(rounds) for pass_ in ladder(EVERYTHING)]:
        if pass_ != DEEPEST:
            runs.append(device.run(pass_, number))
            continue
        played = device.play()
        launches = launch_rows(played, "cudaLaunchKernel", "cudaMemcpyAsync")
        at = launches[next(lost) % len(launches)]
        frame = played.without(at).correlate().frames[0]
        latency = int((played.roots["end_ns"] - played.roots["start_ns"])[0])
        runs.append(Run(pass_, latency, frame, 0, number, latency - device.waited))
    return runs


def merged(runs: Sequence[Run]) -> Merged:
    result = merge(runs)
    integrity.check(result.spans)
    return result


def test_after_settling_kernels_are_found_in_all_runs_and_count_for_their_layers() -> None:
    model = gpu.transformer(2)
    runs = lossy(model, 6, chain(range(0, 100, 3)))
    serial = Gpu(model, blocking=True).play().correlate(synchronous=True).frames[0]
    whole = merged(Gpu(model).measure(6)).spans
    before, after = merged(runs).spans, merged(resolve(runs, [run_of(serial)]).runs).spans
    facts = ["path", "latency_ns", "device_ns", "runs"]
    expected = whole.filter(pl.col("kind").is_in(WORKING)).select(facts).sort("path")
    assert after.filter(pl.col("kind").is_in(WORKING)).select(facts).sort("path").equals(expected)
    assert (
        not before.filter(pl.col("kind").is_in(WORKING)).select(facts).sort("path").equals(expected)
    )
    host = pl.col("kind").is_in(["region", "layer", "op", "call"])
    times = ["path", "device_ns"]
    assert after.filter(host).select(times).equals(whole.filter(host).select(times))


@pytest.mark.parametrize("frame", [crossing(crossed=True), calls(parallel=True)])
def test_marks_survive_that_a_frame_is_put_beside_others(frame: SpanRows) -> None:
    other = Gpu(TWO).play().correlate().frames[0]
    both = pl.concat([frame.with_columns(run=0), other.with_columns(run=1)], how="diagonal_relaxed")
    again = both.filter(pl.col("run") == 1).drop("run")
    assert not is_ambiguous(again).any()
    assert is_ambiguous(both.filter(pl.col("run") == 0)).sum() == is_ambiguous(frame).sum() > 0
