from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.correlation.parent import Trees, correlate
from xsp.provider.row import SpanRows, span_rows

MAIN, WORKER, ENGINE = 1, 2, 3
Nested = list[Any]  # names of operators, and pairs of a layer's name and what it holds


@dataclass
class Step:
    """A training step in the making: time passes by ten with every row that opens or closes."""

    now: int = 1000
    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def open(self, kind: str, name: str, thread: int, **columns: Any) -> dict[str, Any]:
        row = {"kind": kind, "name": name, "thread": thread, "start_ns": self.now, **columns}
        self.now += 10
        self.rows.append(row)
        return row

    def close(self, row: dict[str, Any]) -> None:
        row["end_ns"] = self.now
        self.now += 10

    def forward(self, nested: Nested, thread: int = MAIN, chain: tuple[str, ...] = ()) -> Step:
        """Record layers `(name, [...])` and operators `"name"`, which take a number each."""
        for part in nested:
            if isinstance(part, tuple):
                path = {"attr.module_path": ".".join((*chain, part[0]))}
                row = self.open("layer", part[0], thread, **path, **{"attr.module_class": "Conv2d"})
                self.forward(part[1], thread, (*chain, part[0]))
            else:
                number = self.numbers[thread] = self.numbers.get(thread, -1) + 1
                row = self.open("op", part, thread, sequence=number)
                self.chains[part] = chain
            self.close(row)
        return self

    def backward(self, names: Sequence[str], thread: int = MAIN) -> Step:
        """Record a backward operator for each forward one, or one without a number."""
        for name in names:
            made_by = next((r for r in self.rows if r["name"] == name), {})
            row = self.open(
                "op",
                f"{name} backward",
                thread,
                sequence=made_by.get("sequence"),
                forward_thread=made_by.get("thread"),
            )
            self.close(self.open("op", f"{name} kernel", thread))
            self.close(row)
        return self

    def correlated(self) -> Trees:
        root = {"kind": "pipeline", "name": "step", "start_ns": [0], "end_ns": [self.now]}
        return correlate(span_rows({**root, "thread": [MAIN]}), self.as_rows())

    def as_rows(self) -> SpanRows:
        names = {name for row in self.rows for name in row}
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        return span_rows(columns).sample(fraction=1, shuffle=True, seed=0)


def nest(frame: pl.DataFrame, at: int = 0, *, hide: str = "kernel") -> Nested:
    """Return what lies under a row, as `Step.forward` takes it."""
    found: Nested = []
    for row in frame.with_row_index("at").filter(parent=at).to_dicts():
        below = nest(frame, row["at"], hide=hide)
        if not row["name"].endswith(hide):
            found.append((row["name"], below) if row["kind"] != "op" else row["name"])
    return found


def chain(frame: pl.DataFrame, name: str) -> list[str]:
    """Return the names of the ancestors of the last row of a name, from the parent up."""
    names, parent = frame["name"].to_list(), frame["parent"].to_list()
    at, found = parent[len(names) - 1 - names[::-1].index(name)], []
    while at >= 0:
        found.append(names[at])
        at = parent[at]
    return found


def backward_of(step: Step) -> Nested:
    """Return what the step did after its forward pass."""
    tree = nest(step.correlated().frames[0])
    return tree[tree.index(MARK) + 1 :]


MARK = "loss"
CONVOLUTION = [("model", [("block", [("conv1", ["c1"]), ("conv2", ["c2"])]), ("fc", ["f"])]), MARK]


def test_every_operator_lies_in_a_layer_derived_from_the_one_that_made_it() -> None:
    step = Step().forward(CONVOLUTION).backward(["f", "c2", "c1"])
    assert backward_of(step) == [
        (
            "model",
            [
                ("fc", ["f backward"]),
                ("block", [("conv2", ["c2 backward"]), ("conv1", ["c1 backward"])]),
            ],
        )
    ]


def test_a_derived_layer_says_what_it_is() -> None:
    step = Step().forward(CONVOLUTION).backward(["f", "c2", "c1"], thread=ENGINE)
    frame = step.correlated().frames[0]
    derived = frame.filter(pl.col("attr.phase") == "backward")
    conv = derived.row(by_predicate=pl.col("name") == "conv2", named=True)
    op = frame.row(by_predicate=pl.col("name") == "c2 backward", named=True)
    assert derived.height == 5
    assert (conv["kind"], conv["provenance"], conv["thread"]) == ("layer", "derived", ENGINE)
    assert (conv["attr.module_path"], conv["attr.module_class"]) == ("model.block.conv2", "Conv2d")
    assert (conv["start_ns"], conv["end_ns"]) == (op["start_ns"], op["end_ns"])
    assert conv["sequence"] is None


def test_a_layer_covers_its_run_from_the_first_operator_to_the_last() -> None:
    step = Step().forward([("model", ["a", "b", "c"]), MARK]).backward(["c", "b", "a"])
    frame = step.correlated().frames[0]
    derived = frame.filter(pl.col("attr.phase") == "backward").row(0, named=True)
    ops = frame.filter(pl.col("name").str.ends_with("backward"))
    assert derived["start_ns"] == ops["start_ns"].min()
    assert derived["end_ns"] == ops["end_ns"].max()


def test_forward_and_backward_of_a_layer_are_both_found() -> None:
    step = Step().forward(CONVOLUTION).backward(["f", "c2", "c1"])
    frame = step.correlated().frames[0].filter(kind="layer")
    assert frame["name"].value_counts()["count"].to_list() == [2] * 5
    paths = frame.group_by("name").agg(pl.col("attr.module_path").n_unique())
    assert paths["attr.module_path"].to_list() == [1] * 5


def test_a_residual_connection_breaks_the_run_of_its_block() -> None:
    forward = [("model", [("block", [("conv1", ["c1"]), ("conv2", ["c2"]), "add"])]), MARK]
    step = Step().forward(forward).backward(["add", "c2", "add", "c1"])
    assert backward_of(step) == [
        (
            "model",
            [
                (
                    "block",
                    [
                        "add backward",
                        ("conv2", ["c2 backward"]),
                        "add backward",
                        ("conv1", ["c1 backward"]),
                    ],
                )
            ],
        )
    ]


def test_a_layer_that_is_left_and_entered_again_has_two_runs() -> None:
    step = Step().forward([("a", ["x"]), ("b", ["y"]), MARK]).backward(["x", "y", "x"])
    run = ("a", ["x backward"])
    assert backward_of(step) == [run, ("b", ["y backward"]), run]


def test_the_accumulation_of_a_gradient_stays_where_time_puts_it() -> None:
    step = Step().forward([("a", ["x1", "x2"]), ("b", ["y"]), MARK])
    step.backward(["y", "accumulate", "x2", "accumulate", "x1", "accumulate"])
    assert backward_of(step) == [
        ("b", ["y backward"]),
        "accumulate backward",
        ("a", ["x2 backward", "accumulate backward", "x1 backward"]),
        "accumulate backward",
    ]


def test_an_operator_whose_forward_was_not_seen_stays_where_time_puts_it() -> None:
    step = Step().forward([("a", ["x"]), MARK]).backward(["x"])
    step.close(step.open("op", "lost backward", MAIN, sequence=99, forward_thread=MAIN))
    step.close(step.open("op", "strange backward", MAIN, sequence=0, forward_thread=77))
    assert backward_of(step) == [("a", ["x backward"]), "lost backward", "strange backward"]


def test_an_operator_made_outside_of_every_layer_stays_where_time_puts_it() -> None:
    step = Step().forward([("a", ["x"]), "mean", MARK]).backward(["mean", "x"])
    assert backward_of(step) == ["mean backward", ("a", ["x backward"])]


def test_an_operator_made_outside_of_every_layer_breaks_a_run() -> None:
    step = Step().forward([("a", ["x"]), "mean", MARK]).backward(["x", "mean", "x"])
    run = ("a", ["x backward"])
    assert backward_of(step) == [run, "mean backward", run]


def test_an_instant_made_outside_of_every_layer_is_in_none_that_it_touches() -> None:
    step = Step().forward([("a", ["x"]), "mean", MARK])
    step.close(step.open("op", "x backward", MAIN, sequence=0, forward_thread=MAIN))
    end = step.now - 10
    step.close(step.open("op", "mean backward", MAIN, sequence=1, forward_thread=MAIN))
    step.rows[-1].update(start_ns=end, end_ns=end)
    assert backward_of(step) == [("a", ["x backward"]), "mean backward"]


def test_the_last_operator_that_saw_a_number_is_the_one_that_took_it() -> None:
    step = Step()
    for name, inner in (("relu", "detach"), ("conv", "convolution")):
        layer = step.open("layer", name, MAIN)
        step.close(step.open("op", inner, MAIN, sequence=5))
        step.close(layer)
    step.forward([MARK])
    step.close(step.open("op", "convolution backward", MAIN, sequence=5, forward_thread=MAIN))
    assert backward_of(step) == [("conv", ["convolution backward"])]


def test_threads_of_the_forward_pass_have_numbers_of_their_own() -> None:
    step = Step().forward([("a", ["x"])]).forward([("b", ["y"])], thread=WORKER).forward([MARK])
    step.backward(["y", "x"], thread=MAIN)
    assert backward_of(step) == [("b", ["y backward"]), ("a", ["x backward"])]


def test_operators_of_the_engine_are_no_orphans_once_their_layer_is_known() -> None:
    step = Step().forward([("a", ["x"]), MARK]).backward(["x", "accumulate"], thread=ENGINE)
    correlated = step.correlated()
    assert correlated.orphans == 1
    assert backward_of(step) == [("a", ["x backward"]), "accumulate backward"]


def test_derived_layers_lie_in_the_pipeline_span_of_the_backward_pass() -> None:
    step = Step().forward([("a", ["x"])])
    for name in ("first", "second"):
        span = step.open("pipeline", name, MAIN)
        step.backward(["x"])
        step.close(span)
    run = [("a", ["x backward"])]
    assert nest(step.correlated().frames[0]) == [("a", ["x"]), ("first", run), ("second", run)]


def test_a_gradient_taken_inside_a_layer_is_not_put_into_that_layer_again() -> None:
    step = Step()
    forces = step.open("layer", "forces", MAIN)
    step.forward([("energy", ["e"]), "scale"]).backward(["scale", "e", "scale"])
    step.close(forces)
    step.forward([MARK])
    assert nest(step.correlated().frames[0])[0] == (
        "forces",
        [
            ("energy", ["e"]),
            "scale",
            "scale backward",
            ("energy", ["e backward"]),
            "scale backward",
        ],
    )


def test_a_layer_computed_again_in_the_backward_pass_lies_in_the_derived_one() -> None:
    step = Step().forward([("block", ["checkpoint"]), MARK])
    row = step.open("op", "checkpoint backward", MAIN, sequence=0, forward_thread=MAIN)
    step.forward([("conv", ["again"])])
    step.close(row)
    frame = step.correlated().frames[0]
    assert chain(frame, "again") == ["conv", "checkpoint backward", "block", "step"]


def test_a_mark_around_the_backward_pass_leaves_its_operators_their_layers() -> None:
    step = Step().forward([("a", ["x"]), ("b", ["y"]), MARK])
    mark = step.open("op", "backward pass", MAIN)
    step.backward(["y", "x"])
    step.close(mark)
    frame = step.correlated().frames[0]
    assert chain(frame, "y backward") == ["b", "backward pass", "step"]
    assert chain(frame, "x backward") == ["a", "backward pass", "step"]


def test_operators_made_in_a_mark_in_a_layer_get_that_layer() -> None:
    step = Step().forward([MARK])
    rows = [step.open(*row, MAIN) for row in (("layer", "a"), ("pipeline", "mark"), ("op", "too"))]
    step.forward([("b", ["x"]), "y"])
    for row in reversed(rows):
        step.close(row)
    step.backward(["y", "x"])
    frame = step.correlated().frames[0]
    assert chain(frame, "y backward") == ["a", "step"]
    assert chain(frame, "x backward") == ["b", "a", "step"]


def test_operators_inside_a_backward_operator_stay_there() -> None:
    step = Step().forward([("a", ["x"]), MARK])
    outer = step.open("op", "evaluate_function", MAIN, sequence=0, forward_thread=MAIN)
    step.backward(["x"])
    step.close(outer)
    frame = step.correlated().frames[0]
    at = frame["name"].to_list().index("x backward")
    assert frame["name"][frame["parent"][at]] == "evaluate_function"
    assert frame.filter(kind="layer").height == 2


def test_each_thread_of_the_engine_has_derived_layers_of_its_own() -> None:
    step = Step().forward([("a", ["x", "y"]), MARK])
    step.backward(["y"], thread=ENGINE).backward(["x"], thread=WORKER)
    assert backward_of(step) == [("a", ["y backward"]), ("a", ["x backward"])]


def test_a_number_that_is_taken_only_later_does_not_count() -> None:
    step = Step().forward([MARK])
    step.close(step.open("op", "early backward", MAIN, sequence=1, forward_thread=MAIN))
    step.forward([("a", ["x"])])
    assert backward_of(step) == ["early backward", ("a", ["x"])]


def test_a_stated_parent_counts_among_backward_operators_too() -> None:
    step = Step().forward([("a", ["x1", "x2"]), MARK]).backward(["x2"])
    step.close(step.open("op", "stated", MAIN, parent_id=0))
    step.backward(["x1"])
    assert backward_of(step) == [("a", ["x2 backward", "x1 backward"]), "stated"]


def evaluations(step: Step, border: int) -> tuple[pl.DataFrame, ...]:
    roots = {"kind": "pipeline", "name": ["one", "two"], "thread": [MAIN] * 2}
    times = {"start_ns": [0, border], "end_ns": [border, step.now]}
    return correlate(span_rows({**roots, **times}), step.as_rows()).frames


def test_numbers_of_another_evaluation_do_not_count() -> None:
    step = Step().forward([("a", ["x"]), MARK])
    border = step.now
    step.close(step.open("op", "x backward", MAIN, sequence=0, forward_thread=MAIN))
    assert nest(evaluations(step, border)[1]) == ["x backward"]


def test_every_evaluation_may_count_from_the_start() -> None:
    step = Step().forward([("a", ["x"])]).backward(["x"])
    border = step.now
    step.numbers.clear()
    step.forward([("b", ["y"])]).backward(["y"])
    first, second = evaluations(step, border)
    assert nest(first) == [("a", ["x"]), ("a", ["x backward"])]
    assert nest(second) == [("b", ["y"]), ("b", ["y backward"])]


@st.composite
def layers(draw: st.DrawFn, *, depth: int = 3) -> Nested:
    """Draw layers and operators without names."""
    inner = layers(depth=depth - 1).map(lambda held: ("", held)) if depth else st.nothing()
    return draw(st.lists(st.just("") | inner, max_size=4))


def named(nested: Nested, prefix: str) -> Nested:
    return [
        (f"{prefix}{i}", named(part[1], f"{prefix}{i}_"))
        if isinstance(part, tuple)
        else f"{prefix}{i}"
        for i, part in enumerate(nested)
    ]


def grouped(ops: Sequence[tuple[str, tuple[str, ...]]], depth: int = 0) -> Nested:
    """Return the tree in which neighbours share the layers that their chains have in common."""
    found: Nested = []
    for layer, run in groupby(ops, key=lambda op: op[1][depth] if len(op[1]) > depth else None):
        held = list(run)
        if layer is None:
            found += [f"{name} backward" for name, _ in held]
        else:
            found.append((layer, grouped(held, depth + 1)))
    return found


@unhurried
@given(st.lists(layers(), min_size=1, max_size=2), st.sampled_from([MAIN, ENGINE]), st.data())
def test_operators_in_any_order_share_the_layers_that_neighbours_have_in_common(
    passes: list[Nested], thread: int, data: st.DataObject
) -> None:
    step = Step()
    for number, nested in enumerate(passes):
        step.forward(named(nested, f"{number}:"), thread=(MAIN, WORKER)[number])
    sequence = data.draw(st.permutations(sorted(step.chains)))
    step.forward([MARK]).backward(sequence, thread=thread)
    expected = grouped([(name, step.chains[name]) for name in sequence])
    assert backward_of(step) == expected


@unhurried
@given(layers(), st.data())
def test_derived_layers_enclose_what_lies_in_them(nested: Nested, data: st.DataObject) -> None:
    step = Step().forward(named(nested, "l"))
    names = data.draw(st.lists(st.sampled_from([*step.chains, "accumulate"]), max_size=12))
    rows = step.forward([MARK]).backward(names).as_rows()
    frame = step.correlated().frames[0]
    above = frame[frame["parent"].to_numpy()[1:]]
    assert (above["start_ns"] <= frame["start_ns"][1:]).all()
    assert (above["end_ns"] >= frame["end_ns"][1:]).all()
    derived = frame["provenance"] == "derived"
    assert frame.height == 1 + rows.height + derived.sum()
    assert frame["start_ns"].is_sorted()


def test_a_layer_around_both_forward_and_backward_gets_no_backward_layer() -> None:
    step = Step()
    layer = step.open("layer", "train", MAIN)
    step.forward(["linear"]).backward(["linear"]).close(layer)
    (found,) = step.correlated().frames
    parents = dict(zip(found["name"], found["parent"], strict=True))
    assert parents == {
        "step": -1,
        "train": 0,
        "linear": 1,
        "linear backward": 1,
        "linear kernel": 3,
    }
