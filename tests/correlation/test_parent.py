from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Forest, forests, scattered_rows, unhurried

from xsp.correlation.parent import Trees, correlate
from xsp.evaluation.ancestry import nearest_outer
from xsp.evaluation.run import Run, Rung
from xsp.evaluation.tree_row import TREE_SCHEMA
from xsp.level import Kind
from xsp.merge.assembly import merge
from xsp.provider.row import SpanRows, concat_rows, no_rows, span_rows

Row = tuple[str, str, int, int]

PIPELINE = Rung(frozenset({Kind.PIPELINE}))
LAYER = Rung(frozenset({Kind.PIPELINE, Kind.LAYER}))


def rows_of(*rows: Row, **columns: Any) -> SpanRows:
    kind, name, start, end = zip(*rows, strict=True)
    given_columns = {"kind": kind, "name": name, "start_ns": start, "end_ns": end}
    return span_rows({**given_columns, "thread": [1] * len(rows), **columns})


def root_of(start: int = 0, end: int = 100, **columns: Any) -> SpanRows:
    return rows_of(("pipeline", "root", start, end), **columns)


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
    """Tell whether `outer` is around `inner`, on a rung that records no deeper kind."""
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
    """Return each row's parent on the row's own rung, by comparing every row with every other."""
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
@given(forests())
def test_rows_are_in_the_order_of_their_start(forest: Forest) -> None:
    for frame in correlate(forest.roots, forest.rows).frames:
        assert frame["start_ns"].is_sorted()
    assert_sound(correlate(forest.roots, forest.rows), forest.rows)


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
        ("pipeline", f"t{i + 1}", draw(st.integers(0, 50)), draw(st.integers(50, 150)))
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
        ("pipeline", "first", 0, 10),
        ("pipeline", "second", 2, 12),
        ("pipeline", "inner", 3, 9),
        ("op", "unstated", 4, 5),
        id=[1, 2, 3, None],
        parent_id=[0, 0, 1, None],
    )
    assert found == {"first": "root", "second": "root", "inner": "first", "unstated": "inner"}


def test_a_stated_parent_keeps_a_child_that_begins_before_it() -> None:
    correlated = correlate(
        root_of(),
        rows_of(
            ("pipeline", "parent", 50, 60),
            ("pipeline", "child", 10, 20),
            ("op", "grandchild", 12, 13),
            id=[1, 2, 3],
            parent_id=[0, 1, None],
        ),
    )
    frame = correlated.frames[0]
    assert frame["name"].to_list() == ["root", "parent", "child", "grandchild"]
    assert parents(frame)["child"] == "parent"
    assert frame.row(2, named=True)["start_ns"] == 10


def test_an_unknown_stated_parent_leaves_it_to_time() -> None:
    found = parents_of(
        ("layer", "layer", 0, 10), ("op", "op", 2, 3), id=[1, 2], parent_id=[None, 77]
    )
    assert found == {"layer": "root", "op": "layer"}


def test_a_parent_stated_in_another_evaluation_leaves_it_to_time() -> None:
    roots = rows_of(("pipeline", "a", 0, 10), ("pipeline", "b", 20, 30))
    rows = rows_of(("op", "x", 1, 2), ("op", "y", 21, 22), id=[5, 6], parent_id=[None, 5])
    first, second = correlate(roots, rows).frames
    assert parents(first) == {"a": None, "x": "a"}
    assert parents(second) == {"b": None, "y": "b"}


def test_a_root_can_be_stated_by_its_own_id() -> None:
    rows = rows_of(
        ("op", "op", 3, 4), ("pipeline", "task", 2, 5), id=[None, 1], parent_id=[9, None]
    )
    frame = correlate(root_of(id=[9]), rows).frames[0]
    assert parents(frame) == {"root": None, "task": "root", "op": "root"}


def test_a_mark_in_a_layer_lies_there_though_it_states_the_mark_around_the_layer() -> None:
    rows = rows_of(
        ("pipeline", "request", 0, 90),
        ("layer", "block", 10, 50),
        ("op", "checkpoint", 15, 45),
        ("pipeline", "mark", 20, 30),
        ("op", "add", 21, 29),
        ("pipeline", "next mark", 60, 70),
        id=[1, None, None, 2, None, 3],
        parent_id=[0, None, None, 1, None, 1],
    )
    assert parents_of_rows(rows) == {
        "request": "root",
        "block": "request",
        "checkpoint": "block",
        "mark": "checkpoint",
        "add": "mark",
        "next mark": "request",
    }


def test_a_mark_of_another_task_around_a_layer_leaves_the_stated_parent() -> None:
    rows = rows_of(
        ("pipeline", "one", 0, 90),
        ("pipeline", "other", 5, 80),
        ("layer", "block", 10, 50),
        ("pipeline", "mark", 20, 30),
        id=[1, 2, None, 3],
        parent_id=[0, 0, None, 1],
    )
    assert parents_of_rows(rows)["mark"] == "one"


def test_parents_stated_in_a_circle_leave_it_to_time() -> None:
    found = parents_of(
        ("op", "a", 0, 10),
        ("op", "b", 2, 8),
        ("op", "self", 20, 30),
        id=[1, 2, 3],
        parent_id=[2, 1, 3],
    )
    assert found == {"a": "root", "b": "a", "self": "root"}


def test_a_stated_parent_may_be_of_a_deeper_kind() -> None:
    found = parents_of(
        ("layer", "block", 0, 90),
        ("op", "op", 10, 50),
        ("layer", "inner", 20, 30),
        id=[1, 2, 3],
        parent_id=[0, 1, 2],
    )
    assert found == {"block": "root", "op": "block", "inner": "op"}


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
        ("pipeline", "decoder", 3, 19),
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


def test_an_operator_that_seems_to_begin_before_the_layer_around_it_is_not_its_parent() -> None:
    # Two clocks, which agree to 200 ns.
    rows = [
        ("layer", "fc", 1_000, 9_000),
        ("op", "early", 900, 8_900),
        ("op", "late", 1_100, 9_100),
    ]
    assert parents_of(*rows, root=(0, 10_000))["fc"] == "root"


def test_an_operator_hidden_by_a_partial_overlap_finds_its_layer() -> None:
    found = parents_of(("layer", "outer", 0, 15), ("op", "late", 5, 20), ("layer", "in", 6, 12))
    assert found == {"outer": "root", "late": "root", "in": "outer"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            [("op", "inner", 1, 5), ("layer", "outer", 1, 5)],
            {"outer": "root", "inner": "outer"},
            id="equal intervals: the outer kind encloses",
        ),
        pytest.param(
            [("op", "first", 1, 5), ("op", "second", 1, 5)],
            {"first": "root", "second": "first"},
            id="equal intervals of one kind: as given",
        ),
        pytest.param(
            [("layer", "like root", 0, 100), ("pipeline", "too", 0, 100)],
            {"too": "root", "like root": "too"},
            id="the interval of the root",
        ),
        pytest.param(
            [("op", "first", 1, 5), ("op", "second", 5, 9)],
            {"first": "root", "second": "root"},
            id="touching siblings",
        ),
        pytest.param(
            [("op", "first", 3, 3), ("op", "second", 3, 3)],
            {"first": "root", "second": "root"},
            id="instants of one kind are siblings",
        ),
        pytest.param(
            [("op", "inner", 3, 3), ("layer", "outer", 3, 3)],
            {"outer": "root", "inner": "outer"},
            id="instants of two kinds nest",
        ),
        pytest.param(
            [("op", "before", 1, 5), ("op", "instant", 5, 5)],
            {"before": "root", "instant": "root"},
            id="an instant at the end of its own kind is a sibling",
        ),
        pytest.param(
            [("layer", "before", 1, 5), ("op", "instant", 5, 5)],
            {"before": "root", "instant": "before"},
            id="an instant at the end of an outer kind is inside",
        ),
        pytest.param(
            [("op", "after", 5, 9), ("op", "instant", 5, 5)],
            {"after": "root", "instant": "after"},
            id="an instant at the start of its own kind is inside",
        ),
        pytest.param(
            [("layer", "before", 1, 5), ("layer", "after", 5, 9), ("op", "instant", 5, 5)],
            {"before": "root", "after": "root", "instant": "after"},
            id="an instant between two layers is in the later",
        ),
        pytest.param(
            [("layer", "layer", 1, 5), ("op", "op", 3, 5), ("op", "instant", 5, 5)],
            {"layer": "root", "op": "layer", "instant": "layer"},
            id="an instant after an operator is still in the layer",
        ),
        pytest.param(
            [("op", "op", 1, 5), ("layer", "same start", 1, 4), ("layer", "instant", 5, 5)],
            {"op": "root", "same start": "op", "instant": "root"},
            id="an instant at the end of a deeper kind is a sibling",
        ),
    ],
)
def test_ties(rows: list[Row], expected: dict[str, str]) -> None:
    assert parents_of(*rows) == expected


def test_rows_outside_of_every_root_are_counted_and_left_out() -> None:
    roots = rows_of(("pipeline", "a", 10, 20), ("pipeline", "b", 30, 40))
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


def test_a_row_between_touching_roots_belongs_to_the_later() -> None:
    roots = rows_of(("pipeline", "a", 0, 10), ("pipeline", "b", 10, 20))
    rows = rows_of(("op", "long", 10, 12), ("op", "instant", 10, 10))
    first, second = correlate(roots, rows).frames
    assert first["name"].to_list() == ["a"]
    assert set(second["name"]) == {"b", "long", "instant"}


def test_an_evaluation_without_length_keeps_to_itself() -> None:
    roots = rows_of(("pipeline", "instant", 10, 10), ("pipeline", "next", 10, 20))
    rows = rows_of(("op", "child", 11, 12), ("op", "parent", 14, 15), id=[1, 2], parent_id=[2, 0])
    instant, following = correlate(roots, rows).frames
    assert parents(instant) == {"instant": None}
    assert parents(following) == {"next": None, "parent": "next", "child": "parent"}


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


def test_a_pipeline_span_of_another_thread_is_no_orphan() -> None:
    rows = rows_of(("pipeline", "worker", 10, 50), ("op", "op", 12, 20), thread=[2, 2])
    correlated = correlate(root_of(), rows)
    assert parents(correlated.frames[0]) == {"root": None, "worker": "root", "op": "worker"}
    assert correlated.orphans == 0


def test_a_row_that_outlasts_its_root_is_an_orphan() -> None:
    correlated = correlate(root_of(), rows_of(("op", "op", 90, 110)))
    assert parents(correlated.frames[0]) == {"root": None, "op": "root"}
    assert correlated.orphans == 1


def test_a_row_that_states_the_root_is_no_orphan() -> None:
    correlated = correlate(root_of(), rows_of(("op", "op", 3, 4), thread=[2], parent_id=[0]))
    assert correlated.orphans == 0


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


def test_a_row_without_thread_or_device_is_on_the_thread_of_its_root() -> None:
    rows = rows_of(("layer", "layer", 10, 50), ("call", "call", 12, 20), thread=[1, None])
    correlated = correlate(root_of(), rows)
    assert parents(correlated.frames[0])["call"] == "layer"
    assert correlated.orphans == 0


def test_every_column_is_kept() -> None:
    rows = rows_of(("op", "op", 3, 4), **{"sequence": [5], "attr.input_shapes": [[[1, 2]]]})
    failed: dict[str, Any] = {"attr.error": ["ValueError"]}
    frame = correlate(root_of(**failed), rows).frames[0]
    assert set(frame.columns) == {*TREE_SCHEMA, "attr.input_shapes", "attr.error"}
    assert {name: frame.schema[name] for name in TREE_SCHEMA} == TREE_SCHEMA
    assert frame["attr.input_shapes"].to_list() == [None, [[1, 2]]]
    assert frame["attr.error"].to_list() == ["ValueError", None]


@unhurried
@given(forests(), st.randoms(use_true_random=False))
def test_every_row_keeps_its_own_attributes(forest: Forest, random: Any) -> None:
    sequence = random.sample(range(forest.roots.height), forest.roots.height)
    label = pl.concat_list(pl.col("name").cast(pl.String)).alias("attr.labels")
    roots, rows = forest.roots[sequence].with_columns(label), forest.rows.with_columns(label)
    for frame in correlate(roots, rows).frames:
        assert frame["attr.labels"].list.first().to_list() == frame["name"].to_list()


def test_derived_rows_have_no_attributes_of_others() -> None:
    rows = rows_of(
        ("layer", "fc", 10, 20),
        ("op", "mm", 12, 18),
        ("op", "MmBackward", 50, 60),
        **{
            "sequence": [None, 1, 1],
            "forward_thread": [None, None, 1],
            "attr.module_path": ["fc", None, None],
            "attr.input_shapes": [[[1]], [[2]], [[3]]],
        },
    )
    frame = correlate(root_of(), rows).frames[0]
    derived = frame.filter(frame["provenance"] == "derived")
    assert derived.select("name", "attr.module_path", "attr.phase", "attr.input_shapes").rows() == [
        ("fc", "fc", "backward", None)
    ]
    told = frame.select("name", "attr.input_shapes").filter(frame["provenance"] != "derived")
    assert told.rows() == [
        ("root", None),
        ("fc", [[1]]),
        ("mm", [[2]]),
        ("MmBackward", [[3]]),
    ]


def test_no_rows_leave_the_roots_alone() -> None:
    correlated = correlate(root_of(), no_rows())
    assert parents(correlated.frames[0]) == {"root": None}
    assert (correlated.orphans, correlated.outside) == (0, 0)


def test_without_roots_everything_is_outside() -> None:
    assert correlate(no_rows(), rows_of(("op", "op", 3, 4))) == Trees((), 0, 1)


def test_an_evaluation_in_which_nothing_happened_has_its_frame() -> None:
    roots = rows_of(*[("pipeline", f"r{i}", 10 * i, 10 * i + 5) for i in range(4)])
    rows = rows_of(("op", "x", 11, 12), ("op", "y", 32, 33))
    sizes = [frame.height for frame in correlate(roots, rows).frames]
    assert sizes == [1, 2, 1, 2]


def test_the_input_is_left_as_it_was() -> None:
    roots, rows = root_of(), rows_of(("op", "b", 5, 6), ("op", "a", 3, 4), parent_id=[0, None])
    before = roots.clone(), rows.clone()
    correlate(roots, rows)
    assert roots.equals(before[0])
    assert rows.equals(before[1])


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


def test_rows_without_thread_or_device_get_the_thread_of_their_root() -> None:
    roots = concat_rows([root_of(0, 50), root_of(50, 90).with_columns(thread=pl.lit(9))])
    rows = rows_of(("layer", "a", 1, 4), ("op", "b", 2, 3), ("layer", "c", 60, 70))
    found = correlate(roots, rows.with_columns(thread=pl.lit(None, pl.Int64)))
    assert [frame["thread"].to_list() for frame in found.frames] == [[1, 1, 1], [9, 9]]


def test_rows_of_a_device_get_no_thread() -> None:
    kernel = rows_of(("kernel", "gemm", 3, 5), device=0).with_columns(thread=pl.lit(None, pl.Int64))
    assert correlate(root_of(), kernel).frames[0]["thread"].to_list() == [1, None]


@pytest.mark.parametrize("stated", [True, False])
def test_layers_are_freed_of_what_recording_cost_whether_they_state_a_thread_or_not(
    stated: bool,
) -> None:
    runs = [Run(Rung(frozenset()), 20_000, None, round=i) for i in range(5)]
    runs += [Run(PIPELINE, 20_000, correlate(root_of(0, 20_000), no_rows()).frames[0])] * 5
    inside = rows_of(("layer", "outer", 500, 11_500), ("layer", "inner", 1_500, 6_500))
    if not stated:
        inside = inside.with_columns(thread=pl.lit(None, pl.Int64))
    frame = correlate(root_of(0, 22_000), inside).frames[0]
    runs += [Run(LAYER, 22_000, frame, round=i) for i in range(5)]
    spans = merge(runs).spans
    assert spans["name"].to_list() == ["root", "outer", "inner"]
    assert spans["latency_ns"].to_list() == pytest.approx([20_000, 10_000, 5_000])
    assert spans["attributes"].struct.field("exact").all()


def test_a_row_with_a_thread_and_a_device_is_on_its_thread() -> None:
    found = correlate(root_of(), rows_of(("op", "copy", 3, 5), device=0, stream=7)).frames[0]
    assert found.select("thread", "device", "stream").row(1) == (1, None, None)
