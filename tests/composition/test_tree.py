from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Node, layer, op, pipeline, trace
from strategies import unhurried

from xsp.analyses import time_by_level
from xsp.composition.nested.node import Made
from xsp.composition.nested.part import Part, first_calls
from xsp.composition.own_time import Sampled
from xsp.composition.tree import compose
from xsp.composition.typical.average import average_evaluation
from xsp.evaluation import Run, Rung
from xsp.level import Kind
from xsp.provider import SAMPLE_SCHEMA
from xsp.trace import Trace, parent_rows

THREAD, OTHER = 1, 2


def part(
    name: str, start: int, end: int, parent: int = -1, evaluation: int = -1, thread: int = THREAD
) -> Part:
    return Part(name, Kind.PIPELINE, start, end, thread, parent, evaluation)


def composed(
    parts: Sequence[Part],
    lasting: Sequence[float] | None = None,
    groups: Sequence[int] = (),
    traces: Mapping[int, Trace] | None = None,
    sampled: Sampled | None = None,
    varying: Collection[int] = (),
) -> Trace:
    took = [each.end_ns - each.start_ns for each in parts] if lasting is None else lasting
    ran = [each.end_ns - each.start_ns for each in parts if each.evaluation >= 0]
    lasting_ns = np.array(took, dtype=np.float64)
    nothing = Sampled(pl.DataFrame(schema=SAMPLE_SCHEMA), (), ())
    of_groups = traces or {}
    first = first_calls(parts, lasting_ns.tolist(), groups, of_groups)
    made = Made(groups, ran, range(len(ran)), first, varying)
    spans = compose(parts, lasting_ns, made, of_groups, {}, sampled or nothing)
    result = Trace(spans, trace(pipeline("block")).metadata)
    result.check()
    return result


def rows(trace: Trace, *columns: str) -> dict[str, tuple[object, ...]]:
    wanted = trace.spans.select("path", *columns)
    return {path: tuple(values) for path, *values in wanted.iter_rows()}


def attribute(trace: Trace, name: str) -> dict[str, object]:
    return dict(zip(trace.spans["path"], trace.spans["attributes"].struct.field(name), strict=True))


def decode() -> Trace:
    fc = layer("fc", "Linear", op("aten::addmm", own_ns=9_000), operators_ns=8_000.0)
    return trace(pipeline("decode", fc))


def test_parts_of_one_name_are_one_span_with_their_sum() -> None:
    block = [part("block", 0, 100)]
    for at in (0, 40):
        block += [part("load", at, at + 10, 0), part("infer", at + 10, at + 30, 0)]
    found = composed(block)
    assert rows(found, "latency_ns", "self_ns") == {
        "block": (100, 40),
        "block/load": (20, 20),
        "block/infer": (40, 40),
    }
    assert attribute(found, "calls") == {"block": 1, "block/load": 2, "block/infer": 2}


def test_the_shortest_and_the_longest_are_kept() -> None:
    found = composed([part("block", 0, 100), part("load", 0, 10, 0), part("load", 20, 50, 0)])
    assert attribute(found, "least_ns")["block/load"] == 10
    assert attribute(found, "most_ns")["block/load"] == 30
    assert attribute(found, "least_ns")["block"] is None


def test_a_name_in_unlike_parts_is_several_spans() -> None:
    found = composed(
        [
            part("block", 0, 100),
            part("train", 0, 40, 0),
            part("load", 0, 10, 1),
            part("validate", 50, 90, 0),
            part("load", 50, 55, 3),
        ]
    )
    sums = rows(found, "latency_ns")
    assert (sums["block/train/load"], sums["block/validate/load"]) == ((10,), (5,))


def test_below_a_group_lies_its_tree_as_often_as_it_was_called() -> None:
    one = decode()
    latency = one.root.latency_ns
    assert latency is not None
    calls = [part("decode", 20_000 * n, 20_000 * n + 15_000, 0, n) for n in range(5)]
    found = composed(
        [part("block", 0, 100_000), *calls], [100_000, *[latency] * 5], [0] * 5, {0: one}
    )
    for row in one.spans.iter_rows(named=True):
        path = "block/" + row["path"]
        [above] = found.spans.filter(pl.col("path") == path).iter_rows(named=True)
        columns = ["latency_ns", "self_ns"]
        # What was added to the evaluations themselves is known of each of them.
        columns += ["overhead_ns"] if row["parent_id"] is not None else []
        for column in columns:
            assert above[column] == pytest.approx(5 * row[column]), (path, column)
    assert rows(found, "overhead_ns")["block/decode"] == (5 * 15_000 - 5 * latency,)
    assert set(attribute(found, "calls").values()) == {1, 5}
    assert attribute(found, "operators_ns")["block/decode/fc"] == 5 * 8_000
    assert found.spans["self_ns"].sum() == pytest.approx(100_000)


def test_a_first_call_that_took_much_longer_is_shown_apart() -> None:
    one = decode()
    latency = one.root.latency_ns
    assert latency is not None
    lasting = [4 * latency, latency, latency]
    # Recording made each of them 1 µs longer.
    ends = [100_000 * n + round(lasts_ns) + 1000 for n, lasts_ns in enumerate(lasting)]
    calls = [part("decode", 100_000 * n, end_ns, 0, n) for n, end_ns in enumerate(ends)]
    found = composed(
        [part("block", 0, 300_000), *calls],
        [90_000, *lasting],
        [0] * 3,
        {0: one},
    )
    sums = rows(found, "latency_ns")
    assert sums["block/decode"] == (pytest.approx(3 * latency),)
    [(more,)] = [value for path, value in sums.items() if "first call" in path]
    assert more == pytest.approx(3 * latency)
    added = rows(found, "overhead_ns")
    assert added["block/decode"] == (pytest.approx(3000, abs=2),)
    assert [value for path, (value,) in added.items() if "first call" in path] == [0]
    assert rows(found, "self_ns")["block"] == (pytest.approx(90_000 - 6 * latency),)


def test_threads_at_once_say_for_how_long_any_of_them_ran() -> None:
    found = composed(
        [
            part("block", 0, 100),
            part("serve", 10, 50, 0, thread=OTHER),
            part("serve", 20, 60, 0, thread=OTHER + 1),
            part("serve", 70, 80, 0, thread=OTHER),
        ]
    )
    assert rows(found, "latency_ns", "self_ns")["block/serve"] == (90, 90)
    assert attribute(found, "busy_ns") == {"block": None, "block/serve": 60}
    assert rows(found, "self_ns")["block"] == (100,)  # the block's own thread waited


def test_names_without_end_are_one_span_in_the_end() -> None:
    block = [part("block", 0, 20_000)]
    block += [part(f"request {n}", 2 * n, 2 * n + 1, 0) for n in range(10_000)]
    found = composed(block)
    assert found.spans.height < 600
    assert found.spans["self_ns"].sum() == 20_000
    assert rows(found, "latency_ns")["block/further parts"] == (9_500,)


def test_an_interval_of_a_group_makes_the_blocks_as_wide() -> None:
    one = decode()
    latency, low, high = one.root.latency_ns, one.root.latency_low_ns, one.root.latency_high_ns
    assert latency is not None
    assert low is not None
    assert high is not None
    found = composed(
        [
            part("block", 0, 50_000),
            part("decode", 0, 12_000, 0, 0),
            part("load", 20_000, 30_000, 0),
        ],
        [50_000, latency, 10_000],
        [0],
        {0: one},
    )
    assert found.root.latency_low_ns == pytest.approx(50_000 - (high - low) / 2)
    assert found.root.latency_high_ns == pytest.approx(50_000 + (high - low) / 2)
    sums = rows(found, "latency_low_ns", "latency_high_ns")
    assert sums["block/load"] == (None, None)


def test_what_an_interval_leaves_unknown_took_no_longer_than_it_did_with_xsp() -> None:
    one = decode()
    latency = one.root.latency_ns
    assert latency is not None
    known = one.spans.with_columns(latency_low_ns=pl.lit(0.0), latency_high_ns=10 * latency)
    found = composed(
        [part("block", 0, 50_000), part("decode", 0, 30_000, 0, 0)],
        [40_000, latency],
        [0],
        {0: Trace(known, one.metadata)},
    )
    intervals = rows(found, "latency_low_ns", "latency_high_ns")
    assert intervals["block/decode"] == (0.0, pytest.approx(30_000))
    assert intervals["block"][1] == pytest.approx(40_000 + 30_000 - latency)


def test_of_unlike_evaluations_only_what_was_removed_may_be_wrong() -> None:
    one = decode()
    latency = one.root.latency_ns
    assert latency is not None
    # Each of a hundred sizes once: the mean of so unlike latencies is known to a half only.
    half = one.spans.with_columns(latency_low_ns=0.5 * latency, latency_high_ns=1.5 * latency)
    parts = [part("block", 0, 50_000), part("decode", 0, round(latency) + 2_000, 0, 0)]
    lasting, group = [40_000, latency], {0: Trace(half, one.metadata)}
    alike, unlike = (
        rows(
            composed(parts, lasting, [0], group, varying=varying),
            "latency_low_ns",
            "latency_high_ns",
        )
        for varying in ((), (0,))
    )
    assert alike["block/decode"] == pytest.approx((0.5 * latency, 1.5 * latency))
    assert unlike["block/decode"] == pytest.approx((latency - 2_000, latency + 2_000))
    assert unlike["block"] == pytest.approx((38_000, 42_000))


def test_what_comes_per_call_is_there_as_often_as_a_group_made_calls() -> None:
    def step(calls: int) -> Trace:
        fc = layer("fc", "Linear", op("aten::addmm", own_ns=9_000), operators_ns=8_000.0)
        forwards = (pipeline("forward", fc) for _ in range(calls))
        return trace(pipeline("step", *forwards, pipeline("update")))

    def run(calls: int) -> Run:
        spans = step(calls).spans
        rows = spans.select("kind", "name").with_columns(parent=parent_rows(spans))
        rung = Rung(frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP}))
        return Run(rung, 1, rows, model_calls=calls)

    one = step(4)
    latency = one.root.latency_ns
    assert latency is not None
    average = average_evaluation(one, [run(3), run(4)], 10 / 3)  # ten calls in three evaluations
    parts = [part("block", 0, 400_000)]
    parts += [part("step", 100_000 * n, 100_000 * n + 90_000, 0, n) for n in range(3)]
    made = Made([0] * 3, [90_000] * 3, range(3), {}, (0,))
    nothing = Sampled(pl.DataFrame(schema=SAMPLE_SCHEMA), (), ())
    lasting = np.array([400_000, *[latency] * 3], dtype=np.float64)
    found = Trace(compose(parts, lasting, made, {}, {0: average}, nothing), one.metadata)
    found.check()
    calls = found.spans["attributes"].struct.field("calls")
    sums = (
        found.spans.with_columns(calls=calls)
        .group_by("name")
        .agg(
            pl.sum("calls", "latency_ns", "self_ns"),
            operators_ns=pl.col("attributes").struct.field("operators_ns").sum(),
        )
    )
    by_name = {row["name"]: row for row in sums.iter_rows(named=True)}
    assert {name: row["calls"] for name, row in by_name.items()} == {
        "block": 1, "step": 3, "forward": 10, "fc": 10, "aten::addmm": 10, "update": 3,
    }  # fmt: skip
    assert by_name["step"]["latency_ns"] == pytest.approx(3 * latency)
    for name, times in (("forward", 10), ("aten::addmm", 10), ("update", 3)):
        each = one.spans.filter(name=name)["latency_ns"][0]
        assert by_name[name]["latency_ns"] == pytest.approx(times * each)
    assert by_name["fc"]["operators_ns"] == pytest.approx(80_000)
    assert found.spans["self_ns"].sum() == pytest.approx(400_000)
    # What is drawn, and shared out among the levels, is an average step as well.
    for row in time_by_level(found).iter_rows(named=True):
        assert row["own_ns"] <= row["latency_ns"] * 1.001


@st.composite
def programs(draw: st.DrawFn) -> list[Part]:
    """Draw parts nested at random, on one thread, parents before children."""
    result = [part("block", 0, draw(st.integers(200, 1_000)))]

    def fill(parent: int, start: int, end: int, depth: int) -> None:
        while end - start > 4 and draw(st.booleans()):
            begin = draw(st.integers(start, end - 2))
            until = draw(st.integers(begin + 1, end))
            result.append(part(draw(st.sampled_from("abc")), begin, until, parent))
            if depth:
                fill(len(result) - 1, begin, until, depth - 1)
            start = until

    fill(0, 0, result[0].end_ns, 3)
    return result


@unhurried
@given(programs())
def test_random_parts_make_a_trace_whose_sums_are_right(parts: list[Part]) -> None:
    found = composed(parts)
    whole = parts[0].end_ns
    assert found.spans["self_ns"].sum() == pytest.approx(whole)
    assert found.spans["attributes"].struct.field("calls").sum() == len(parts)
    by_name: dict[str, int] = {}
    for each in parts:
        by_name[each.name] = by_name.get(each.name, 0) + each.end_ns - each.start_ns
    for name, total in by_name.items():
        mine = found.spans.filter(pl.col("name") == name)
        assert mine["latency_ns"].sum() == pytest.approx(total)


def nodes() -> st.SearchStrategy[Node]:
    return st.recursive(
        st.builds(lambda ns: op("aten::add", own_ns=ns), st.integers(0, 9_000)),
        lambda inner: st.builds(
            lambda children, ns: layer("block", "Block", *children, own_ns=ns),
            st.lists(inner, max_size=3),
            st.integers(0, 9_000),
        ),
        max_leaves=12,
    )


@unhurried
@given(nodes(), st.integers(1, 40))
def test_a_groups_tree_keeps_its_proportions(node: Node, count: int) -> None:
    one = trace(pipeline("model", node))
    latency = one.root.latency_ns
    assert latency
    length = int(latency) + 10
    calls = [part("model", length * n, length * n + int(latency), 0, n) for n in range(count)]
    lasting = [length * count, *[latency] * count]
    found = composed([part("block", 0, length * count), *calls], lasting, [0] * count, {0: one})
    assert found.spans["self_ns"].sum() == pytest.approx(length * count)
    assert found.spans.height == one.spans.height + 1
