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
from recorded import device, host, install, program, rows, steps, write
from strategies import Forest, forests, unhurried

import xsp
from xsp.importers import Recording
from xsp.reading.importers.build import _built
from xsp.reading.importers.rank import Part, align
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
    (found,) = [warning.message for warning in trace.warnings if warning.code == code]
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
    assert "by the time of day" in message(trace, "clocks")
    assert trace.metadata["began_unix_ns"] == day


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
    assert "not every process recorded 1 step" in message(trace, "steps-differ")


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
            own = pl.col("path").str.starts_with(f"{child.path}/") & pl.col("device").is_null()
            on_host = forest.rows["device"].null_count()  # earlier work of devices is left out
            assert trace.spans.select(own.sum()).item() == on_host + forest.roots.height


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
