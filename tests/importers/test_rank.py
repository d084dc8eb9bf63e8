"""Several recordings as one trace: a child for each process, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import device, host, install, program, rows, step_rows, steps, write
from strategies import Forest, forests, unhurried

import xsp
from xsp.importers import Recording
from xsp.importers.build import _built
from xsp.importers.clock import align
from xsp.importers.rank import Part
from xsp.trace import Trace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
HOUR_NS = 3_600_000_000_000


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "recorded:Toy")


def read(folder: Path, *recordings: Recording, whole: bool = False) -> Trace:
    files = [write(folder / f"worker{number}.json", each) for number, each in enumerate(recordings)]
    trace = xsp.read(*files, steps=not whole)
    trace.check()
    return trace


def message(trace: Trace, code: str) -> str:
    (found,) = [problem.message for problem in trace.problems if problem.code == code]
    return found


def with_collectives(ends: Sequence[int], *, add: int = 0, **facts: object) -> Recording:
    """Return a recording on a clock that is `add` behind, with collectives that end then."""
    first, last = min(ends) - add, max(ends) - add
    found = [host("op", "train", first - 2_000_000, last + 1_000)]
    found += [
        device(ALL_REDUCE, end - add - 90_000, end - add, stream=20 + number)
        for number, end in enumerate(ends)
    ]
    return replace(program(0), rows=rows(*found), roots=rows(), **facts)  # type: ignore[arg-type]


def test_a_child_for_each_rank_in_their_order(tmp_path: Path) -> None:
    first = program(5, rank=1, host="node2", environment={"devices": ["H100", "H100"]})
    trace = read(tmp_path, first, program(5, rank=0, host="node1"))
    assert trace.name == "worker"
    children = trace.children(trace.root)
    assert [child.name for child in children] == ["rank 0", "rank 1"]
    told = [tuple(child.attributes[n] for n in ("rank", "host", "devices")) for child in children]
    assert told == [(0, "node1", None), (1, "node2", ["H100", "H100"])]
    assert trace.span("worker/rank 1/fc/aten::addmm/gemm").runs == 5
    assert trace.root.attributes["step"] == "ProfilerStep#2"
    assert [each["rank"] for each in trace.metadata["imported"]["recordings"]] == [0, 1]
    assert "rank 1 " in str(trace)
    assert "on another thread" not in str(trace)  # but in another process


def test_ranks_share_no_thread_device_or_correlation_id(tmp_path: Path) -> None:
    trace = read(tmp_path, *(program(2, rank=rank) for rank in range(3)))
    spans = trace.spans
    for name in ("thread", "device"):
        assert spans[name].drop_nulls().n_unique() == 3
    ids = spans.filter(spans["correlation_id"].is_not_null())
    assert ids["correlation_id"].n_unique() == 3
    assert set(ids.group_by("correlation_id").len()["len"]) == {2}  # a launch and its kernel


def test_what_was_launched_lies_in_its_own_rank(tmp_path: Path) -> None:
    several = [
        replace(program(1), rank=rank, rows=rows(*step_rows(0, rank % 2), *extra(rank)))
        for rank in range(4)
    ]
    trace = read(tmp_path, *several)
    for rank in range(4):
        found = trace.spans.filter(trace.spans["name"] == f"kernel of {rank}")
        assert found["path"].to_list() == [f"worker/rank {rank}/copy of {rank}/kernel of {rank}"]


def extra(rank: int) -> list[tuple[object, ...]]:
    return [
        host("op", f"copy of {rank}", 91_000, 95_000),
        host("launch", "cudaMemcpyAsync", 92_000, 93_000, id=7),
        device(f"kernel of {rank}", 96_000, 99_000, id=7),
    ]


def test_the_root_lasts_from_the_first_beginning_to_the_last_end(tmp_path: Path) -> None:
    day = 10**18
    trace = read(
        tmp_path,
        program(3, rank=0, unix_ns=day),
        program(3, rank=1, unix_ns=day + 40_000),
    )
    assert trace.root.latency_ns == 140_000
    second = trace.children(trace.root)[1]
    assert (second.measured_start_ns, second.measured_end_ns) == (40_000, 140_000)
    assert "by the time of day in the files" in message(trace, "clocks")
    assert trace.metadata["began_unix_ns"] == day


def test_the_beginning_is_by_the_clock_of_the_first_rank_whatever_the_order_of_files(
    tmp_path: Path,
) -> None:
    day = 10**18
    several = (program(2, rank=1, unix_ns=day + 30_000), program(2, rank=0, unix_ns=day))
    assert read(tmp_path, *several).metadata["began_unix_ns"] == day


def test_without_any_clock_ranks_begin_together_and_that_is_said(tmp_path: Path) -> None:
    late = replace(
        program(2, rank=1),
        rows=rows(*step_rows(5_000_000, 1), *step_rows(5_100_000, 2)),
        roots=steps((5_000_000, 5_100_000), (5_100_000, 5_200_000)),
    )
    trace = read(tmp_path, program(2, rank=0), late)
    assert trace.root.latency_ns == 100_000
    assert "rank 1: neither the time of day nor collectives" in message(trace, "clocks-unknown")


def test_processes_of_one_file_have_one_clock(tmp_path: Path) -> None:
    several = [program(2, name=name) for name in ("trainer", "loader")]
    moved = replace(
        several[1],
        rows=rows(*step_rows(30_000, 1), *step_rows(130_000, 2)),
        roots=steps((30_000, 130_000), (130_000, 230_000)),
    )
    trace = xsp.read(write(tmp_path / "report.toy", several[0], moved))
    trace.check()
    assert [child.name for child in trace.children(trace.root)] == ["trainer", "loader"]
    assert trace.root.latency_ns == 130_000
    assert trace.problems == ()


def test_the_same_steps_of_all_ranks_are_shown(tmp_path: Path) -> None:
    one = program(3, rank=0)
    other = replace(
        program(3, rank=1),
        roots=steps(
            *[(n * 100_000, (n + 1) * 100_000) for n in range(3)],
            names=[f"ProfilerStep#{number}" for number in (1, 2, 3)],
        ),
    )
    trace = read(tmp_path, one, other)
    assert trace.metadata["imported"]["steps"] == ("ProfilerStep#1", "ProfilerStep#2")
    assert "1 step not recorded by every process" in message(trace, "steps-differ")


def test_a_process_without_steps_has_those_of_another(tmp_path: Path) -> None:
    day = 10**18
    late = program(3, rank=0, unix_ns=day + 50_000)
    trace = read(tmp_path, replace(late, roots=rows()), program(3, rank=1, unix_ns=day))
    assert trace.root.runs == 3
    assert trace.root.latency_ns == 100_000
    assert "rank 0: without steps of their own, shown in those of rank 1" in message(
        trace, "steps-borrowed"
    )
    # Of its own three, the first layer begins in the middle of a step.
    assert trace.span("worker/rank 0/fc").measured_start_ns == 50_000


def test_processes_of_which_none_has_steps_are_shown_whole(tmp_path: Path) -> None:
    trace = read(tmp_path, *(replace(program(3, rank=rank), roots=rows()) for rank in range(2)))
    assert trace.root.runs == 1
    assert [span.name for span in trace.children(trace.span("worker/rank 0"))] == ["fc"] * 3


def test_problems_say_whose_they_are_unless_all_have_them(tmp_path: Path) -> None:
    lost = host("op", "AddmmBackward0", 30_000, 40_000, thread=2)
    with_lost = replace(program(1, rank=1), rows=rows(*step_rows(0, 0), lost))
    one = read(tmp_path, program(1, rank=0), with_lost)
    assert message(one, "orphans").startswith("rank 1: outermost on other threads")
    both = read(tmp_path, replace(with_lost, rank=0), with_lost)
    assert message(both, "orphans").startswith("outermost on other threads")


@pytest.mark.parametrize("told", [None, 0, 5 * HOUR_NS], ids=["unknown", "right", "hours off"])
def test_clocks_are_found_by_collectives_to_the_microsecond(told: int | None) -> None:
    random = np.random.default_rng(1)
    ends = np.cumsum(random.integers(300_000, 9_000_000, 200)) + 10**9
    add = 3 * HOUR_NS + 123_456_789
    late = ends + random.integers(-2_000, 2_000, 200)
    day = {} if told is None else {"unix_ns": 10**18}
    other = {} if told is None else {"unix_ns": 10**18 + add + told}
    recordings = [
        with_collectives(ends.tolist(), **day),
        with_collectives(late.tolist(), add=add, **other),
    ]
    clock = align(recordings, [0, 1])[1]
    assert clock.source == "collectives"
    assert abs(clock.add_ns - add) < 1_000
    assert clock.matched == 200
    assert clock.error_ns is not None
    assert clock.error_ns < 3_000
    assert clock.corrected_ns == (None if told is None else clock.add_ns - add - told)


@given(st.data())
def test_clocks_are_found_though_recordings_hold_other_parts_of_the_program(
    data: st.DataObject,
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    every = np.cumsum(random.integers(50_000, 20_000_000, 120)) + 10**10
    add = data.draw(st.integers(-(10**15), 10**15))
    seen = [np.sort(random.choice(every, 70, replace=False)) for _ in range(2)]
    recordings = [
        with_collectives(seen[0].tolist()),
        with_collectives((seen[1] + random.integers(-500, 500, 70)).tolist(), add=add),
    ]
    clock = align(recordings, [0, 1])[1]
    assert clock.source == "collectives"
    assert abs(clock.add_ns - add) <= 1_000


def test_collectives_that_follow_one_another_quickly_are_told_apart() -> None:
    random = np.random.default_rng(2)
    ends = np.cumsum(random.integers(40_000, 60_000, 2_000)) + 10**9
    recordings = [
        with_collectives(ends.tolist(), unix_ns=10**18),
        with_collectives(
            (ends + random.integers(0, 3_000, 2_000)).tolist(), add=8_000_000, unix_ns=10**18
        ),
    ]
    clock = align(recordings, [0, 1])[1]
    assert abs(clock.add_ns - 8_000_000) < 3_000


def test_a_rank_that_shares_no_collective_with_the_first_is_found_by_another() -> None:
    ends = [10**9 + number * number * 1_000_000 for number in range(20)]
    others = [end + 300_000 for end in ends]
    group = "attr.collective_group"

    def grouped(recording: Recording, *groups: str) -> Recording:
        kernels = recording.rows["kind"] == "kernel"
        found = iter(groups)
        names = [next(found) if is_kernel else None for is_kernel in kernels]
        return replace(recording, rows=recording.rows.with_columns(pl.Series(group, names)))

    def several(*, add: int, first: bool, second: bool) -> Recording:
        chosen = ends * first + others * second
        recording = with_collectives(chosen, add=add)
        return grouped(recording, *["data"] * 20 * first, *["pipeline"] * 20 * second)

    recordings = [
        several(add=0, first=True, second=False),
        several(add=70_000, first=False, second=True),
        several(add=5 * HOUR_NS, first=True, second=True),
    ]
    clocks = align(recordings, [0, 1, 2])
    assert [clock.source for clock in clocks] == ["first", "collectives", "collectives"]
    assert [clock.add_ns for clock in clocks] == [0, 70_000, 5 * HOUR_NS]


def test_few_collectives_that_end_apart_tell_nothing() -> None:
    recordings = [
        with_collectives([10**9, 2 * 10**9]),
        with_collectives([10**9 + 5_000_000, 2 * 10**9 + 300_000_000]),
    ]
    assert align(recordings, [0, 1])[1].source == "beginning"


def test_the_error_of_the_clocks_is_stated(tmp_path: Path) -> None:
    ends = [10**9 + number * number * 1_000_000 for number in range(20)]
    trace = read(
        tmp_path,
        with_collectives(ends, rank=0, unix_ns=10**18),
        with_collectives(ends, add=HOUR_NS, rank=1, unix_ns=10**18),
    )
    said = message(trace, "clocks")
    assert "rank 1: brought onto one clock by 20 collectives that end together" in said
    assert "agree to ±0 ns; by the files alone they were up to 3,600 s off" in said
    told = trace.metadata["imported"]["recordings"][1]
    assert (told["clock"], told["clock_add_ns"], told["clock_error_ns"]) == (
        "collectives",
        HOUR_NS,
        0,
    )


def test_each_process_replays_what_it_captured_itself() -> None:
    def with_graph(op: str) -> Recording:
        found = rows(
            host("op", op, 5, 25),
            host("launch", "cudaLaunchKernel", 10, 20, id=2),
            host("launch", "cudaGraphLaunch", 60, 70, id=9),
            device("gemm", 80, 90, id=9),
        )
        nodes = {
            "attr.created_nodes": pl.Series([None, [4], None, None], dtype=pl.List(pl.Int64)),
            "attr.captured_node": pl.Series([None, None, None, 4], dtype=pl.Int64),
            "attr.graph_node": pl.Series([None, None, None, 4], dtype=pl.Int64),
        }
        return Recording("Toy 1", found.with_columns(**nodes))

    parts = [
        Part(with_graph(op), number, f"rank{number}")
        for number, op in enumerate(("aten::mm", "aten::add"))
    ]
    trace = _built(parts, (), files=[], steps=True)
    trace.check()
    assert trace.span("rank/rank0/cudaGraphLaunch/aten::mm/gemm").attributes["graph_node"] == 4
    assert trace.span("rank/rank1/cudaGraphLaunch/aten::add/gemm").attributes["graph_node"] == 4


@unhurried
@given(st.lists(forests(evaluations=2, depth=3), min_size=2, max_size=3), st.booleans())
def test_random_processes_keep_their_trees(several: list[Forest], whole: bool) -> None:
    parts = [
        Part(Recording("Toy 1", forest.rows, forest.roots), number, f"file {number}")
        for number, forest in enumerate(several)
    ]
    trace = _built(parts, (), files=[], steps=not whole)
    trace.check()
    children = trace.children(trace.root)
    assert [child.attributes["process"] for child in children] == list(range(len(several)))
    if whole:
        for child, forest in zip(children, several, strict=True):
            below = trace.spans["path"].str.starts_with(f"{child.path}/")
            assert below.sum() == forest.rows.height + forest.roots.height


DAY_NS = 24 * HOUR_NS


@pytest.mark.parametrize(
    ("hosts", "later_ns"),
    [(("", ""), 811 * DAY_NS), (("a", "b"), 2 * DAY_NS), (("a", "a"), 1_000_000)],
    ids=["years", "days", "one host"],
)
def test_recordings_that_cannot_be_of_one_program_are_refused(
    tmp_path: Path, hosts: tuple[str, str], later_ns: int
) -> None:
    first = program(3, host=hosts[0], unix_ns=10**18)
    other = program(3, host=hosts[1], unix_ns=10**18 + later_ns)
    told = r"worker0 and worker1 are not of one run: .* worker0 ended .* `xsp compare`"
    with pytest.raises(xsp.TraceFormatError, match=told):
        read(tmp_path, first, other)
    with pytest.raises(xsp.TraceFormatError, match=r"worker1 ended .* before worker0 began"):
        read(tmp_path, other, first)


def test_hosts_whose_clocks_are_hours_apart_are_one_program_without_collectives(
    tmp_path: Path,
) -> None:
    several = (
        program(3, rank=rank, host=f"node{rank}", unix_ns=10**18 + rank * 5 * HOUR_NS)
        for rank in range(2)
    )
    assert "by the time of day in the files" in message(read(tmp_path, *several), "clocks")


def test_hosts_whose_clocks_are_years_apart_are_one_program_by_their_collectives(
    tmp_path: Path,
) -> None:
    ends = [10**9 + number * number * 1_000_000 for number in range(20)]
    trace = read(
        tmp_path,
        with_collectives(ends, rank=0, host="a", unix_ns=10**18),
        with_collectives(ends, rank=1, host="b", unix_ns=10**18 + 900 * DAY_NS),
    )
    assert "20 collectives that end together" in message(trace, "clocks")


def test_processes_of_one_file_may_follow_one_another(tmp_path: Path) -> None:
    first, second = (program(2, name=name, host="a") for name in ("load", "train"))
    later = rows(*step_rows(10**9, 1))
    second = replace(second, rows=later, roots=steps((10**9, 10**9 + 100_000)))
    trace = xsp.read(write(tmp_path / "report.toy", first, second), steps=False)
    assert [child.name for child in trace.children(trace.root)] == ["load", "train"]
