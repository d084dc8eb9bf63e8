from __future__ import annotations

from typing import Any

import gpu
import polars as pl
import pytest
from gpu import EVERYTHING, MAIN, Gpu, Step, Work, homes, launch, right_homes
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.correlation.open_ended import end_with_launches
from xsp.correlation.parent import correlate
from xsp.evaluation.run import ladder
from xsp.level import Kind
from xsp.merge.assembly import Merged, merge
from xsp.provider.row import SpanRows, span_rows
from xsp.trace import integrity

Row = tuple[str, int, int | None, int | None]


def rows_of(*rows: Row, **columns: Any) -> SpanRows:
    kind, start, end, thread = zip(*rows, strict=True)
    names = [f"{each}{number}" for number, each in enumerate(kind)]
    threads = pl.Series(thread, dtype=pl.Int64)
    ends = pl.Series(end, dtype=pl.Int64)
    known = {"kind": kind, "name": names, "start_ns": start, "end_ns": ends, "thread": threads}
    return span_rows({**known, **columns})


ROOTS = rows_of(("pipeline", 0, 1000, 1), ("pipeline", 2000, 3000, 1))


def ends(*rows: Row, roots: SpanRows = ROOTS) -> list[int]:
    """Return when the calls that had no end do end, by their start."""
    made = rows_of(*rows).sort("name", descending=True)  # in any order
    ended = end_with_launches(roots, made)
    assert ended["end_ns"].null_count() == 0
    return (
        ended.filter(provenance="ended_by_launch")
        .filter(pl.col("kind") == "call")
        .sort("start_ns")["end_ns"]
        .to_list()
    )


def test_call_ends_with_its_last_launch() -> None:
    call: Row = ("call", 10, None, 1)
    assert ends(call, ("launch", 20, 30, 1), ("launch", 40, 55, 1)) == [55]
    assert ends(call, ("launch", 5, 8, 1), ("launch", 10, 12, 1)) == [12]


def test_a_launch_in_a_launch_does_not_shorten_the_call() -> None:
    assert ends(("call", 10, None, 1), ("launch", 20, 60, 1), ("launch", 22, 50, 1)) == [60]


def test_launches_after_the_next_call_are_that_ones() -> None:
    first: Row = ("call", 10, None, 1)
    launches: tuple[Row, ...] = (("launch", 20, 30, 1), ("launch", 60, 70, 1))
    assert ends(first, ("call", 50, None, 1), *launches) == [30, 70]
    assert ends(first, ("call", 50, 80, 1), *launches) == [30]


def test_launches_of_another_thread_are_not_the_calls() -> None:
    assert ends(("call", 10, None, 1), ("launch", 20, 30, 2)) == [10]
    both: tuple[Row, ...] = (("call", 10, None, 1), ("call", 12, None, 2))
    assert ends(*both, ("launch", 20, 30, 2), ("launch", 40, 50, 1)) == [50, 30]


def test_launches_behind_the_operator_or_the_layer_are_not_the_calls() -> None:
    rest: tuple[Row, ...] = (("call", 10, None, 1), ("launch", 20, 30, 1), ("launch", 50, 60, 1))
    assert ends(("op", 5, 40, 1), *rest) == [30]
    assert ends(("layer", 5, 40, 1), *rest) == [30]
    assert ends(("layer", 5, 90, 1), ("op", 6, 40, 1), *rest) == [30]
    assert ends(("layer", 5, 90, 1), *rest) == [60]
    assert ends(("op", 5, 55, 1), *rest) == [30]  # that launch is not all inside
    assert ends(("layer", 5, 10, 1), *rest) == [60]  # it ended as the call began


def test_launches_behind_the_next_operator_are_not_the_calls() -> None:
    rest: tuple[Row, ...] = (("call", 10, None, 1), ("launch", 20, 30, 1))
    assert ends(("op", 5, 90, 1), ("op", 40, 80, 1), *rest, ("launch", 50, 60, 1)) == [30]
    assert ends(("op", 5, 90, 1), ("op", 40, 45, 1), *rest, ("launch", 50, 60, 1)) == [30]


def test_launches_of_the_next_evaluation_are_not_the_calls() -> None:
    later: Row = ("launch", 2100, 2200, 1)
    assert ends(("call", 900, None, 1), later) == [900]
    worker: tuple[Row, ...] = (("call", 900, None, 2), ("launch", 2100, 2200, 2))
    assert ends(*worker) == [900]


def test_a_call_in_a_call_that_tells_its_end_lies_within_it() -> None:
    outer: Row = ("call", 10, 50, 1)
    inside: tuple[Row, ...] = (("call", 12, None, 1), ("launch", 20, 30, 1))
    assert ends(outer, *inside, ("launch", 60, 70, 1)) == [30]


def test_a_call_without_launches_stays_an_instant() -> None:
    assert ends(("op", 0, 90, 1), ("call", 10, None, 1)) == [10]
    assert ends(("call", 10, None, None), ("launch", 20, 30, 1)) == [10]
    assert end_with_launches(ROOTS, rows_of(("op", 0, 9, 1))).equals(rows_of(("op", 0, 9, 1)))


def test_launches_hang_below_the_call_that_they_end() -> None:
    rows = rows_of(("op", 5, 90, 1), ("call", 10, None, 1), ("launch", 20, 30, 1))
    frame = correlate(ROOTS, rows).frames[0]
    assert frame.select("kind", "parent").rows() == [
        ("pipeline", -1),
        ("op", 0),
        ("call", 1),
        ("launch", 2),
    ]


@unhurried
@given(gpu.models(), st.integers(1, 3), st.booleans(), st.integers(0, 9))
def test_every_kernel_finds_its_way_back_through_calls_without_an_end(
    model: tuple[Step, ...], evaluations: int, drain: bool, seed: int
) -> None:
    played = Gpu(gpu.endless(model), drain=drain).play(evaluations)
    correlated = played.correlate(seed)
    found = {made: home for frame in correlated.frames for made, home in homes(frame).items()}
    assert found == right_homes(pl.concat([played.roots, played.rows]))
    assert (correlated.outside, correlated.unlaunched, correlated.ambiguous_parents) == (0, 0, 0)


def measured(device: Gpu, *, deepest: Kind = Kind.LAUNCH, rounds: int = 8) -> Merged:
    rungs = [rung for rung in ladder(EVERYTHING) if rung.order <= deepest.order]
    runs = [device.run(rung, number) for number in range(rounds) for rung in rungs]
    result = merge(runs)
    integrity.check(result.spans)
    return result


def codes(merged: Merged) -> list[str]:
    return [problem.code for problem in merged.problems]


def test_their_latency_comes_from_the_rung_of_launches_without_its_overhead() -> None:
    model = (Step(Kind.LAYER, "Model", tuple(matmul(i) for i in range(4))),)
    merged = measured(Gpu(model, cost_ns=400))
    calls = merged.spans.filter(kind="call")
    assert calls.height == 4
    # 500 ns until the launch, which takes 1,000.
    assert calls["latency_ns"].to_list() == pytest.approx([1_500] * 4)
    assert calls["attributes"].struct.field("inexact").to_list() == [["derived"]] * 4
    assert (calls["runs"] == 8).all()
    assert calls["device_ns"].to_list() == [5_000] * 4
    assert not {"no-end", "unmatched", "carries-overhead", "prediction"} & set(codes(merged))


def matmul(number: int) -> Step:
    call = Step(Kind.CALL, "cublasSgemm", (launch(Work()),), endless=True)
    return Step(Kind.OP, f"aten::mm{number}", (launch(Work("set", 500)), call), own_ns=9_000)


def test_without_launches_their_latency_is_not_known_and_this_is_said() -> None:
    merged = measured(Gpu([matmul(0)], cost_ns=400), deepest=Kind.CALL)
    call = merged.spans.filter(kind="call").row(0, named=True)
    assert (call["latency_ns"], call["runs"], call["start_ns"]) == (None, 0, call["end_ns"])
    operator = merged.spans.filter(kind="op").row(0, named=True)
    assert operator["self_ns"] == operator["latency_ns"]
    said = [problem.message for problem in merged.problems if problem.code == "no-end"]
    assert len(said) == 1
    assert "levels=4" in said[0]
    assert "carries-overhead" not in codes(merged)


def test_a_call_that_launches_nothing_has_no_latency_on_the_kernel_rung_either() -> None:
    idle = Step(Kind.CALL, "cublasSetStream", endless=True)
    merged = measured(Gpu([Step(Kind.OP, "mm", (idle,)), matmul(1)]))
    latency = dict(merged.spans.filter(kind="call").select("name", "latency_ns").iter_rows())
    assert latency["cublasSetStream"] is None
    assert latency["cublasSgemm"] == pytest.approx(1_500)
    said = [problem.message for problem in merged.problems if problem.code == "no-end"]
    assert said
    assert "1 call (cublasSetStream)" in said[0]


def test_rows_that_all_have_an_end_are_left_alone() -> None:
    rows = rows_of(("op", 0, 9, MAIN))
    assert end_with_launches(ROOTS, rows) is rows
