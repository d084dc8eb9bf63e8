from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from strategies import unhurried

from xsp.provider.row import SpanRows, span_rows
from xsp.reading.correlation.parent import Trees, correlate

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
        root = {"kind": "region", "name": "step", "start_ns": [0], "end_ns": [self.now]}
        return correlate(span_rows({**root, "thread": [MAIN]}), self.as_rows())

    def as_rows(self) -> SpanRows:
        names = {name for row in self.rows for name in row}
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        return span_rows(columns).sample(fraction=1, shuffle=True, seed=0)


def nest(frame: pl.DataFrame, at: int = 0, *, hide: str = "kernel") -> Nested:
    """List the rows under a row, as `Step.forward` takes them."""
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
    """List the rows of the step after its forward pass."""
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
    assert (conv["kind"], conv["provenance"], conv["thread"]) == ("layer", "inferred", ENGINE)
    assert (conv["attr.module_path"], conv["attr.module_class"]) == ("model.block.conv2", "Conv2d")
    assert (conv["start_ns"], conv["end_ns"]) == (op["start_ns"], op["end_ns"])
    assert conv["sequence"] is None


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


def test_an_operator_whose_forward_was_not_seen_stays_where_time_puts_it() -> None:
    step = Step().forward([("a", ["x"]), MARK]).backward(["x"])
    step.close(step.open("op", "lost backward", MAIN, sequence=99, forward_thread=MAIN))
    step.close(step.open("op", "strange backward", MAIN, sequence=0, forward_thread=77))
    assert backward_of(step) == [("a", ["x backward"]), "lost backward", "strange backward"]


def test_a_layer_computed_again_in_the_backward_pass_lies_in_the_derived_one() -> None:
    step = Step().forward([("block", ["checkpoint"]), MARK])
    row = step.open("op", "checkpoint backward", MAIN, sequence=0, forward_thread=MAIN)
    step.forward([("conv", ["again"])])
    step.close(row)
    frame = step.correlated().frames[0]
    assert chain(frame, "again") == ["conv", "checkpoint backward", "block", "step"]


def evaluations(step: Step, border: int) -> tuple[pl.DataFrame, ...]:
    roots = {"kind": "region", "name": ["one", "two"], "thread": [MAIN] * 2}
    times = {"start_ns": [0, border], "end_ns": [border, step.now]}
    return correlate(span_rows({**roots, **times}), step.as_rows()).frames


def test_numbers_of_another_evaluation_do_not_count() -> None:
    step = Step().forward([("a", ["x"]), MARK])
    border = step.now
    step.close(step.open("op", "x backward", MAIN, sequence=0, forward_thread=MAIN))
    assert nest(evaluations(step, border)[1]) == ["x backward"]


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
    """Return the tree in which neighbors share the layers that their chains have in common."""
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
def test_operators_in_any_order_share_the_layers_that_neighbors_have_in_common(
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
    derived = frame["provenance"] == "inferred"
    assert frame.height == 1 + rows.height + derived.sum()
    assert frame["start_ns"].is_sorted()
