from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Forest, forests, scattered_rows, unhurried

from xsp.level import Kind
from xsp.matching.ancestry import nearest_outer
from xsp.provider.row import SpanRows, no_rows, span_rows
from xsp.reading.correlation.parent import Trees, correlate

Row = tuple[str, str, int, int]


def rows_of(*rows: Row, **columns: Any) -> SpanRows:
    kind, name, start, end = zip(*rows, strict=True)
    given_columns = {"kind": kind, "name": name, "start_ns": start, "end_ns": end}
    return span_rows({**given_columns, "thread": [1] * len(rows), **columns})


def root_of(start: int = 0, end: int = 100, **columns: Any) -> SpanRows:
    return rows_of(("region", "root", start, end), **columns)


def parents(frame: pl.DataFrame) -> dict[str, str | None]:
    names = frame["name"].to_list()
    above = frame["parent"].to_list()
    return {name: names[at] if at >= 0 else None for name, at in zip(names, above, strict=True)}


def parents_of(
    *rows: Row, root: tuple[int, int] = (0, 100), **columns: Any
) -> dict[str, str | None]:
    return parents_of_rows(rows_of(*rows, **columns), root)


def parents_of_rows(rows: SpanRows, root: tuple[int, int] = (0, 100)) -> dict[str, str | None]:
    found = correlate(root_of(*root), rows).frames[0]
    return {name: parent for name, parent in parents(found).items() if name != "root"}


def encloses(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    """Tell whether `outer` is around `inner`, on a pass that records no deeper kind."""
    deeper = Kind(inner["kind"]).order - Kind(outer["kind"]).order
    begun_before = (outer["start_ns"], -outer["end_ns"], -deeper, outer["at"]) < (
        inner["start_ns"],
        -inner["end_ns"],
        0,
        inner["at"],
    )
    ended_after = outer["end_ns"] >= inner["end_ns"]
    still_open = deeper > 0 or inner["start_ns"] < max(outer["end_ns"], inner["end_ns"])
    same = outer["thread"] == inner["thread"]
    return same and deeper >= 0 and begun_before and ended_after and still_open


def parents_one_by_one(root: SpanRows, rows: SpanRows) -> dict[str, str | None]:
    """Return each row's parent on the row's own pass, by comparing every row with every other."""
    given_rows = rows.with_row_index("at").to_dicts()
    first, last = root["start_ns"][0], root["end_ns"][0]
    inside = [
        r
        for r in given_rows
        if first <= r["start_ns"] < last or r["start_ns"] == r["end_ns"] == last
    ]
    inside.sort(key=lambda r: (r["start_ns"], -r["end_ns"], Kind(r["kind"]).order, r["at"]))
    found: dict[str, str | None] = {"root": None}
    for row in inside:
        around = [other for other in inside if encloses(other, row)]
        found[row["name"]] = around[-1]["name"] if around else "root"
    return found


def without_deeper_kinds(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the tree with each row below its nearest ancestor that is of no deeper kind."""
    order = np.array([Kind(kind).order for kind in frame["kind"]])
    return frame.with_columns(parent=nearest_outer(frame["parent"].to_numpy(), order))


def assert_sound(correlated: Trees, rows: SpanRows) -> None:
    for frame in correlated.frames:
        parent = frame["parent"].to_numpy()
        assert parent[0] == -1
        assert (parent[1:] >= 0).all()
        assert (parent < np.arange(len(parent))).all()
    kept = [name for frame in correlated.frames for name in frame["name"][1:]]
    assert len(kept) == len(set(kept)) == rows.height - correlated.outside


@unhurried
@given(forests())
def test_shuffled_rows_become_the_tree_they_came_from(forest: Forest) -> None:
    correlated = correlate(forest.roots, forest.rows)
    expected = [{span.name: span.parent for span in tree} for tree in forest.trees]
    assert [parents(frame) for frame in correlated.frames] == expected
    assert correlated.orphans == forest.orphans
    assert correlated.outside == 0


@unhurried
@given(forests(), st.randoms(use_true_random=False))
def test_trees_come_in_the_order_of_the_roots(forest: Forest, random: Any) -> None:
    sequence = random.sample(range(forest.roots.height), forest.roots.height)
    correlated = correlate(forest.roots[sequence], forest.rows)
    assert [frame["name"][0] for frame in correlated.frames] == [
        forest.trees[i][0].name for i in sequence
    ]
    assert [set(frame["name"]) for frame in correlated.frames] == [
        {span.name for span in forest.trees[i]} for i in sequence
    ]


@unhurried
@given(scattered_rows(), st.integers(0, 20))
def test_rows_that_overlap_in_part_disturb_no_others(rows: SpanRows, end: int) -> None:
    root = root_of(0, end, thread=[7])
    correlated = correlate(root, rows)
    assert_sound(correlated, rows)
    found = without_deeper_kinds(correlated.frames[0])
    assert parents(found) == parents_one_by_one(root, rows)


@unhurried
@given(scattered_rows())
def test_a_parent_encloses_its_children_or_is_the_root(rows: SpanRows) -> None:
    frame = correlate(root_of(0, 20), rows).frames[0]
    parent = frame["parent"].to_numpy()[1:]
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    enclosed = (start[parent] <= start[1:]) & (end[1:] <= end[parent])
    assert (enclosed | (parent == 0)).all()


@st.composite
def stated_trees(draw: st.DrawFn) -> tuple[SpanRows, dict[str, str | None]]:
    """Draw spans of tasks that take turns on one thread, each stating its parent."""
    count = draw(st.integers(1, 12))
    above = [draw(st.integers(0, i)) for i in range(count)]
    rows = [
        ("region", f"t{i + 1}", draw(st.integers(0, 50)), draw(st.integers(50, 150)))
        for i in range(count)
    ]
    rows_in_order = rows_of(*rows, id=range(1, count + 1), parent_id=above)
    sequence = draw(st.permutations(range(count)))
    names = ["root", *(f"t{i + 1}" for i in range(count))]
    return rows_in_order[sequence], {f"t{i + 1}": names[at] for i, at in enumerate(above)}


@unhurried
@given(stated_trees())
def test_stated_parents_count_whatever_time_says(
    case: tuple[SpanRows, dict[str, str | None]],
) -> None:
    rows, expected = case
    correlated = correlate(root_of(), rows)
    assert_sound(correlated, rows)
    assert parents(correlated.frames[0]) == {"root": None, **expected}
    assert correlated.orphans == 0


@unhurried
@given(scattered_rows(), st.data())
def test_any_stated_parents_give_a_tree(rows: SpanRows, data: st.DataObject) -> None:
    number = st.none() | st.integers(0, 6)
    drawn = data.draw(
        st.lists(st.tuples(number, number), min_size=rows.height, max_size=rows.height)
    )
    ids, above = [pair[0] for pair in drawn], [pair[1] for pair in drawn]
    stated = rows.with_columns(
        id=pl.Series(ids, dtype=pl.Int64), parent_id=pl.Series(above, dtype=pl.Int64)
    )
    assert_sound(correlate(root_of(0, 20), stated), stated)


def test_rows_of_a_task_hang_below_it_though_another_is_open() -> None:
    found = parents_of(
        ("region", "first", 0, 10),
        ("region", "second", 2, 12),
        ("region", "inner", 3, 9),
        ("op", "unstated", 4, 5),
        id=[1, 2, 3, None],
        parent_id=[0, 0, 1, None],
    )
    assert found == {"first": "root", "second": "root", "inner": "first", "unstated": "inner"}


def test_parents_stated_in_a_circle_leave_it_to_time() -> None:
    found = parents_of(
        ("op", "a", 0, 10),
        ("op", "b", 2, 8),
        ("op", "self", 20, 30),
        id=[1, 2, 3],
        parent_id=[2, 1, 3],
    )
    assert found == {"a": "root", "b": "a", "self": "root"}


def test_a_layer_lies_in_the_operator_that_calls_it() -> None:
    assert parents_of(("op", "op", 0, 10), ("layer", "layer", 2, 8), ("op", "add", 3, 4)) == {
        "op": "root",
        "layer": "op",
        "add": "layer",
    }


def test_marks_of_any_kind_nest_in_layers_and_around_them() -> None:
    found = parents_of(
        ("layer", "model", 0, 90),
        ("op", "encoder", 1, 50),
        ("layer", "a", 2, 20),
        ("region", "decoder", 3, 19),
        ("layer", "c", 4, 18),
        ("op", "add", 5, 6),
        ("layer", "b", 30, 40),
    )
    assert found == {
        "model": "root",
        "encoder": "model",
        "a": "encoder",
        "decoder": "a",
        "c": "decoder",
        "add": "c",
        "b": "encoder",
    }


def test_calls_of_workers_run_side_by_side_in_the_operator_that_waits_for_them() -> None:
    rows: list[Row] = [
        ("op", "attention", 10, 90),
        ("call", "one worker's", 20, 60),
        ("call", "the other's", 30, 40),
        ("op", "empty", 45, 50),
    ]
    assert parents_of(*rows, thread=[1, None, None, 1]) == {
        "attention": "root",
        "one worker's": "attention",
        "the other's": "attention",
        "empty": "attention",
    }
    beside = parents_of(*rows, thread=[1, 1, None, 1])  # one of the workers calls the model
    assert (beside["the other's"], beside["empty"]) == ("attention", "one worker's")
    assert parents_of(*rows, thread=[1, 1, 1, 1])["the other's"] == "one worker's"


def test_rows_outside_of_every_root_are_counted_and_left_out() -> None:
    roots = rows_of(("region", "a", 10, 20), ("region", "b", 30, 40))
    rows = rows_of(
        ("op", "before", 0, 15),
        ("op", "in a", 12, 14),
        ("op", "between", 20, 25),
        ("op", "in b", 30, 31),
        ("op", "last moment", 40, 40),
        ("op", "after", 41, 45),
    )
    correlated = correlate(roots, rows)
    assert correlated.outside == 3
    assert [frame["name"].to_list() for frame in correlated.frames] == [
        ["a", "in a"],
        ["b", "in b", "last moment"],
    ]


def test_rows_of_other_threads_nest_there_and_their_tops_are_orphans() -> None:
    rows = rows_of(
        ("layer", "layer", 10, 50),
        ("op", "same thread", 12, 20),
        ("op", "other thread", 13, 19),
        ("op", "below it", 14, 15),
        thread=[1, 1, 2, 2],
    )
    correlated = correlate(root_of(), rows)
    assert parents(correlated.frames[0]) == {
        "root": None,
        "layer": "root",
        "same thread": "layer",
        "other thread": "root",
        "below it": "other thread",
    }
    assert correlated.orphans == 1


def test_streams_of_devices_are_apart() -> None:
    rows = rows_of(
        ("kernel", "long", 10, 50),
        ("kernel", "other stream", 12, 20),
        ("kernel", "other device", 13, 19),
        thread=[None] * 3,
        device=[0, 0, 1],
        stream=[7, 8, 7],
    )
    correlated = correlate(root_of(), rows)
    assert set(parents(correlated.frames[0]).values()) == {None, "root"}
    assert correlated.orphans == 3


@unhurried
@given(forests(), st.randoms(use_true_random=False))
def test_every_row_keeps_its_own_attributes(forest: Forest, random: Any) -> None:
    sequence = random.sample(range(forest.roots.height), forest.roots.height)
    label = pl.concat_list(pl.col("name").cast(pl.String)).alias("attr.labels")
    roots, rows = forest.roots[sequence].with_columns(label), forest.rows.with_columns(label)
    for frame in correlate(roots, rows).frames:
        assert frame["attr.labels"].list.first().to_list() == frame["name"].to_list()


def test_without_roots_everything_is_outside() -> None:
    assert correlate(no_rows(), rows_of(("op", "op", 3, 4))) == Trees((), 0, 1)


def test_the_input_is_left_as_it_was() -> None:
    roots, rows = root_of(), rows_of(("op", "b", 5, 6), ("op", "a", 3, 4), parent_id=[0, None])
    before = roots.clone(), rows.clone()
    correlate(roots, rows)
    assert roots.equals(before[0])
    assert rows.equals(before[1])


@pytest.mark.timing
def test_a_very_deep_recursion_takes_no_longer_than_a_broad_tree() -> None:
    depth = 100_000
    time_of = np.arange(depth)
    rows = span_rows(
        {
            "kind": "layer",
            "name": "again",
            "start_ns": time_of,
            "end_ns": 4 * depth - time_of,
            "thread": np.ones(depth, np.int64),
        }
    )
    begin = time.perf_counter()
    frame = correlate(root_of(0, 4 * depth), rows).frames[0]
    assert time.perf_counter() - begin < 5
    assert (frame["parent"].to_numpy() == np.arange(-1, depth)).all()
