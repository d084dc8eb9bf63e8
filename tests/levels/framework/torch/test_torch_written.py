from __future__ import annotations

import random
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request, pack, unpack
from xsp_levels.framework.torch.module.graph import Operator, WrittenGraphs, matched
from xsp_levels.framework.torch.provider import Torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]

X = torch.ones(2, 8)


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act, self.project = nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.project(self.act(self.norm(x)))) + x


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = nn.ModuleList([Block(), Block()]), nn.Sequential(nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(x).softmax(-1)


WRITTEN = [
    *[
        (name, f"blocks.{i}{path}")
        for i in range(2)
        for name, path in (
            ("aten::layer_norm", ".norm"),
            ("aten::relu", ".act"),
            ("aten::linear", ".project"),
            ("aten::relu", ".act"),
            ("aten::add", ""),
        )
    ],
    ("aten::tanh", "last.0"),
    ("aten::softmax", None),
]
LAYERS = [
    *[
        (path, kind)
        for i in range(2)
        for path, kind in (
            (f"blocks.{i}", "Block"),
            (f"blocks.{i}.norm", "LayerNorm"),
            (f"blocks.{i}.act", "ReLU"),
            (f"blocks.{i}.project", "Linear"),
            (f"blocks.{i}.act", "ReLU"),
        )
    ],
    ("last", "Sequential"),
    ("last.0", "Tanh"),
]


class Loop(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.sum())):
            x = x.abs()
        return x


def made(how: str, model: Any) -> Any:
    if how == "script":
        return torch.jit.script(model)
    if how == "trace":
        return torch.jit.trace(model, X)
    return torch.export.export(model, (X,)).module()


def recorded(model: Any, detail: bool = False, *, gradients: bool = False) -> pl.DataFrame:
    provider = Torch()
    provider.start(SystemClock(), Request(frozenset({Kind.LAYER, Kind.OP}), detail=detail))
    try:
        with torch.set_grad_enabled(gradients):
            model(X)
    finally:
        records = provider.stop()
    rows = provider.spans(records)
    assert provider.spans(unpack(provider, pack(provider, records))).equals(rows)
    return rows.sort("start_ns", maintain_order=True)


def derived(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(kind="layer", provenance="inferred")


def written(rows: pl.DataFrame) -> list[tuple[str, str | None]]:
    """Return the operators of the model in order, each with the path of its layer."""
    names = {name for name, _ in WRITTEN}
    layers = derived(rows).select("attr.module_path", parent_id="id")
    name = pl.col("name").str.replace("::native_layer", "::layer")  # TorchScript may run either
    ops = rows.with_columns(name).filter(pl.col("name").is_in(names))
    ops = ops.filter(pl.col("name") != pl.col("name").shift(1).fill_null(""))  # one in the other
    found = ops.join(layers, on="parent_id", how="left", maintain_order="left", suffix="_of")
    return found.select("name", "attr.module_path_of").rows()


@pytest.mark.parametrize("how", ["script", "trace", "export"])
@pytest.mark.parametrize("detail", [False, True])
def test_each_operator_lies_in_the_module_in_which_it_was_written(how: str, detail: bool) -> None:
    rows = recorded(made(how, Model().eval()), detail)
    assert written(rows) == WRITTEN
    layers = derived(rows)
    assert layers.select("attr.module_path", "attr.module_class").rows() == LAYERS
    assert layers["name"].to_list() == [path.rpartition(".")[2] for path, _ in LAYERS]


@pytest.mark.parametrize("how", ["script", "trace", "export"])
def test_operators_lie_in_the_module_whose_parameters_they_are_given(how: str) -> None:
    rows = recorded(made(how, Model().eval()), detail=True)
    layers = derived(rows).select("attr.module_path", parent_id="id")
    given = rows.filter(pl.col("attr.parameters_of").is_not_null(), kind="op")
    outer = given.join(layers, on="parent_id", maintain_order="left", suffix="_of")
    assert outer.height >= 4
    assert outer["attr.parameters_of"].to_list() == [[p] for p in outer["attr.module_path_of"]]


@pytest.mark.parametrize("how", ["script", "trace", "export"])
def test_a_measured_model_has_the_layers(how: str) -> None:
    trace = xsp.measure(made(how, Model().eval()), X, levels=2, runs=3, budget=1, progress=False)
    trace.check()
    paths = trace.spans.filter(kind="layer").unnest("attributes")["module_path"].to_list()
    assert set(paths) - {"_guards_fn"} == {"", *(path for path, _ in LAYERS)}


class Reaching(nn.Module):  # type: ignore[misc]
    """Calls a module's modules itself, and its own ones of the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.layers = nn.ReLU(), nn.ModuleList([nn.Linear(8, 8)])
        self.body = nn.Module()
        self.body.act, self.body.layers = nn.ReLU(), nn.ModuleList([nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.body.layers[0](self.body.act(x)))


@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_module_is_not_taken_for_its_namesake(how: str) -> None:
    graph = WrittenGraphs().of(made(how, Reaching()))
    assert graph is not None
    found = [(each.name, each.layers) for each in graph.operators]
    assert found == [("aten::relu", ("body.act",)), ("aten::linear", ()), ("aten::linear", ())]


def test_a_model_in_training_has_its_normalization() -> None:
    model = made("script", nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()))
    for _ in range(3):  # TorchScript optimizes meanwhile
        model(X)
    rows = recorded(model, gradients=True)
    layers = dict(derived(rows).select("id", "attr.module_path").rows())
    name = pl.col("name").is_in(["aten::batch_norm", "aten::_batch_norm_impl_index"])
    (parent, *_) = rows.filter(name)["parent_id"]
    assert layers[parent] == "1"


def test_code_with_loops_or_of_an_unknown_form_has_no_graph() -> None:
    graphs = WrittenGraphs()
    assert graphs.of(torch.jit.script(Loop())) is None
    assert graphs.of(torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Tanh()))) is None
    assert graphs.of(nn.ReLU()) is None


Written = tuple[tuple[str, str | None], ...]  # operators and paths; None in a branch
GRAPH: Written = (("a::x", "one"), ("a::y", "two"), ("a::x", "three"))


def paths(names: list[str], graph: Written = GRAPH, interval: Any = None) -> dict[int, str]:
    start = np.arange(len(names)) * 10
    interval = np.stack([start, start + 10]) if interval is None else interval
    operators = [Operator(name, None if path is None else (path,)) for name, path in graph]
    found = matched(names, interval, operators)
    return {i: operator.layers[0] for i, operator in found.items() if operator.layers}


def test_any_graph_with_operators_inside_operators_is_told() -> None:
    draw = random.Random(1)
    for _ in range(100):
        graph = tuple((f"a::{draw.choice('xyz')}", f"path{i}") for i in range(draw.randint(1, 12)))
        names, start, end, expected = [], [], [], []
        for i, (name, path) in enumerate(graph):
            depth = draw.randint(0, 3)
            names += [name, *(f"a::{draw.choice('xyzw')}" for _ in range(depth))]
            start += [i * 100 + level for level in range(depth + 1)]
            end += [i * 100 + 99 - level for level in range(depth + 1)]
            expected += [path] * (depth + 1)
        order = draw.sample(range(len(names)), len(names))
        interval = np.array([[start[i] for i in order], [end[i] for i in order]])
        found = paths([names[i] for i in order], graph, interval)
        assert found == {place: expected[i] for place, i in enumerate(order)}
