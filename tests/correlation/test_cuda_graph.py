"""Nodes of CUDA graphs under what captured them, on trees that are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp.level import Kind
from xsp.matching.run import Run, ladder
from xsp.provider.row import span_rows
from xsp.reading.correlation.cuda_graph import captures, replayed, unseen, with_captured
from xsp.reading.correlation.parent import correlate

KINDS = (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL)
EVERYTHING = frozenset({*KINDS, Kind.LAUNCH, Kind.KERNEL})
CLONE = 1000  # added to a captured node's number by making the graph executable


@dataclass
class Span:
    """A call during the capture of a graph; one of kind launch captures nodes."""

    kind: Kind
    name: str
    inside: list[Span] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)


def capture(spans: list[Span]) -> pl.DataFrame:
    """Return the tree of the step in which these were called."""
    rows: list[dict[str, Any]] = []

    def call(span: Span, now: int) -> int:
        row: dict[str, Any] = {"kind": span.kind.value, "name": span.name, "start_ns": now}
        rows.append(row)
        now += 1
        for each in span.inside:
            now = call(each, now)
        row |= {"end_ns": now + 1, "attr.created_nodes": span.nodes or None}
        row["correlation_id"] = now if span.kind is Kind.LAUNCH else None
        row["attr.module_path"] = span.name if span.kind is Kind.LAYER else None
        return now + 2

    end = 1
    for span in spans:
        end = call(span, end)
    frame = pl.DataFrame(rows, infer_schema_length=None)
    columns = {name: frame[name] for name in frame.columns}
    return tree(span_rows({**columns, "thread": 7}), end)


def tree(rows: pl.DataFrame, end: int) -> pl.DataFrame:
    roots = span_rows(
        {"kind": ["region"], "name": ["predict"], "start_ns": [0], "end_ns": [end], "thread": 7}
    )
    return correlate(roots, rows).frames[0]


def replay(nodes: list[int], launches: int = 1, length: int = 10) -> pl.DataFrame:
    """Return the tree of a step that launches the graph so many times."""
    rows: list[dict[str, Any]] = []
    for number in range(1, launches + 1):
        begin = 100 * number
        rows.append(
            {"kind": "launch", "name": "cudaGraphLaunch", "start_ns": begin, "end_ns": begin + 9}
            | {"thread": 7, "correlation_id": number}
        )
        for at, node in enumerate(nodes):
            start = begin + 20 + at * length
            rows.append(
                {"kind": "kernel", "name": f"k{node}", "start_ns": start, "end_ns": start + length}
                | {"device": 0, "stream": 3, "correlation_id": number}
                | {"attr.graph_node": node + CLONE, "attr.captured_node": node}
            )
    frame = pl.DataFrame(rows, infer_schema_length=None)
    made = span_rows({name: frame[name] for name in frame.columns})
    return tree(made, 100 * (launches + 1) + length * len(nodes) + 100)


def lines(frame: pl.DataFrame) -> list[str]:
    """Return each row's kinds and names from the root down."""
    found: list[str] = []
    for kind, name, parent in frame.select("kind", "name", "parent").iter_rows():
        assert parent < len(found)
        found.append((f"{found[parent]}/" if parent >= 0 else "") + f"{kind}:{name}")
    return found


def linear(name: str, *nodes: int) -> Span:
    launch = Span(Kind.LAUNCH, "cudaLaunchKernel", nodes=list(nodes))
    return Span(Kind.LAYER, name, [Span(Kind.OP, "aten::addmm", [launch])])


def test_nodes_lie_in_the_layers_and_operators_that_captured_them() -> None:
    model = Span(Kind.LAYER, "Net", [linear("fc1", 1, 2), linear("fc2", 3)])
    known = captures([capture([model])])
    frame = replayed(replay([1, 2, 3]), known)
    top = "region:predict/launch:cudaGraphLaunch"
    assert lines(frame) == [
        "region:predict",
        top,
        f"{top}/layer:Net",
        f"{top}/layer:Net/layer:fc1",
        f"{top}/layer:Net/layer:fc1/op:aten::addmm",
        f"{top}/layer:Net/layer:fc1/op:aten::addmm/kernel:k1",
        f"{top}/layer:Net/layer:fc1/op:aten::addmm/kernel:k2",
        f"{top}/layer:Net/layer:fc2",
        f"{top}/layer:Net/layer:fc2/op:aten::addmm",
        f"{top}/layer:Net/layer:fc2/op:aten::addmm/kernel:k3",
    ]
    derived = frame.filter(frame["attr.replayed"].fill_null(value=False))
    assert derived["device"].to_list() == [0] * 5
    assert derived["thread"].null_count() == 5
    assert derived["attr.module_path"].to_list() == ["Net", "fc1", None, "fc2", None]
    assert (derived["end_ns"] - derived["start_ns"]).to_list() == [30, 20, 20, 10, 10]


def test_each_launch_of_a_graph_has_its_own() -> None:
    known = captures([capture([linear("fc", 1)])])
    frame = replayed(replay([1], launches=3), known)
    layers = frame.filter(frame["kind"] == "layer")
    assert layers["correlation_id"].to_list() == [1, 2, 3]
    assert len(set(layers["parent"])) == 3


def test_what_was_not_captured_in_sight_is_counted_and_left() -> None:
    frame = replay([1, 2]).with_columns(
        pl.when(pl.col("attr.captured_node") == 1)
        .then("attr.captured_node")
        .alias("attr.captured_node")
    )
    run = Run(ladder(EVERYTHING)[-1], 1000, frame)
    known = captures([capture([linear("fc", 1)])])
    assert unseen([run, run], known) == 1
    assert unseen([run], captures([])) == 2
    assert lines(replayed(frame, known))[-1] == "region:predict/launch:cudaGraphLaunch/kernel:k2"


def test_runs_without_graphs_are_as_they_were() -> None:
    run = Run(ladder(EVERYTHING)[-1], 1000, capture([linear("fc")]))
    known = captures([run.rows] if run.rows is not None else [])
    (found, bare) = with_captured([run, Run(ladder(EVERYTHING)[0], 900)], known)
    assert found.rows is run.rows
    assert bare.rows is None


def test_several_captures_do_not_mix() -> None:
    runs = [
        Run(ladder(EVERYTHING)[-1], 1000, frame)
        for frame in (
            capture([linear("a", 1)]),
            capture([linear("b", 2)]),
            replay([2, 1]),
        )
    ]
    known = captures([run.rows for run in runs if run.rows is not None])
    last = with_captured(runs, known)[-1].rows
    assert last is not None
    assert [line.split("/")[2:] for line in lines(last) if "kernel" in line] == [
        ["layer:a", "op:aten::addmm", "kernel:k1"],
        ["layer:b", "op:aten::addmm", "kernel:k2"],
    ]


@st.composite
def models(draw: st.DrawFn, outermost: int = 0, depth: int = 4) -> list[Span]:
    spans = []
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(outermost, len(KINDS)))
        if at == len(KINDS) or not depth:
            spans.append(Span(Kind.LAUNCH, "go", nodes=[0] * draw(st.integers(0, 3))))
        else:
            name = draw(st.sampled_from("ab"))
            spans.append(Span(KINDS[at], name, draw(models(at, depth - 1))))
    return spans


def numbered(spans: list[Span]) -> Iterator[tuple[int, list[str]]]:
    """Number all nodes from 1, and yield each with what it lies in."""
    counter = iter(range(1, 10_000))

    def walk(span: Span, above: list[str]) -> Iterator[tuple[int, list[str]]]:
        if span.kind is Kind.LAUNCH:
            span.nodes = [next(counter) for _ in span.nodes]
            yield from ((node, above) for node in span.nodes)
        for inner in span.inside:
            yield from walk(inner, [*above, f"{span.kind.value}:{span.name}"])

    for span in spans:
        yield from walk(span, [])


@given(models(), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_any_capture_is_found_again(spans: list[Span], launches: int, random: Any) -> None:
    built = dict(numbered(spans))
    if not built:
        return
    order = list(built)
    random.shuffle(order)
    run = Run(ladder(EVERYTHING)[-1], 1000, replay(order, launches))
    (found,) = with_captured([run], captures([capture(spans)]))
    assert found.rows is not None
    seen: dict[int, list[list[str]]] = {}
    for line in lines(found.rows):
        *above, last = line.split("/")
        if last.startswith("kernel"):
            seen.setdefault(int(last.removeprefix("kernel:k")), []).append(above[2:])
    assert seen == {node: [above] * launches for node, above in built.items()}
    starts = found.rows["start_ns"].to_numpy()
    ends, parent = found.rows["end_ns"].to_numpy(), found.rows["parent"].to_numpy()
    kernels = (found.rows["kind"] == "kernel").to_numpy()
    inner = kernels & (found.rows["device"].gather(parent).is_not_null()).to_numpy()
    assert np.all(starts[inner] >= starts[parent[inner]])
    assert np.all(ends[inner] <= ends[parent[inner]])
