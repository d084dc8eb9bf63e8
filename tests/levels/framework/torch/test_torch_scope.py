from __future__ import annotations

import random
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request, pack, unpack
from xsp_levels.framework.torch.module.scope import Scopes, scope_paths, scopes
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
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).softmax(-1)


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
    ("aten::softmax", ""),
]


class Branch(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.BatchNorm1d(8), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if bool(x.sum() > 1e6):
            x = self.act(x)
        return x.tanh()


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


def operators(model: Any, detail: bool = True) -> pl.DataFrame:
    provider = Torch()
    provider.start(SystemClock(), Request(frozenset({Kind.LAYER, Kind.OP}), detail=detail))
    try:
        with torch.no_grad():
            model(X)
    finally:
        records = provider.stop()
    rows = provider.spans(records)
    assert provider.spans(unpack(provider, pack(provider, records))).equals(rows)
    return rows.filter(kind="op")


def written(rows: pl.DataFrame) -> list[tuple[str, str]]:
    names = {name for name, _ in WRITTEN}
    return rows.filter(pl.col("name").is_in(names)).select("name", "attr.scope").rows()


@pytest.mark.parametrize("how", ["script", "trace", "export"])
def test_each_operator_says_in_which_module_it_was_written(how: str) -> None:
    assert written(operators(made(how, Model().eval()))) == WRITTEN


@pytest.mark.parametrize("how", ["script", "trace", "export"])
def test_operators_were_written_in_the_module_whose_parameters_they_are_given(how: str) -> None:
    rows = operators(made(how, Model().eval())).filter(pl.col("attr.parameters_of").is_not_null())
    assert rows.height >= 8
    assert rows["attr.parameters_of"].to_list() == [[path] for path in rows["attr.scope"]]


def test_an_operator_inside_another_was_written_where_the_other_was() -> None:
    rows = operators(made("export", Model().eval()))
    inner = rows.filter(name="aten::addmm")["attr.scope"].to_list()
    assert inner == ["blocks.0.project", "blocks.1.project"]


@pytest.mark.parametrize("how", ["script", "trace", "export"])
def test_paths_begin_at_the_root_of_the_model_around(how: str) -> None:
    class Around(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = made(how, Model().eval()), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.inner(x))

    inside = [(name, f"inner.{path}".rstrip(".")) for name, path in WRITTEN]
    assert written(operators(Around())) == [*inside, ("aten::relu", None)]


def test_timed_runs_and_plain_modules_have_no_scopes() -> None:
    assert "attr.scope" not in operators(made("export", Model().eval()), detail=False).columns
    assert "attr.scope" not in operators(Model().eval()).columns


def test_around_branches_operators_are_told_and_inside_they_are_not() -> None:
    rows = operators(torch.jit.script(Branch().train()))
    told = dict(rows.select("name", "attr.scope").rows())
    assert (told["aten::batch_norm"], told["aten::tanh"]) == ("norm", "")
    assert told["aten::add_"] is None  # the count of batches, which BatchNorm keeps when training


def test_code_with_loops_or_of_an_unknown_form_has_no_scopes() -> None:
    assert scopes(torch.jit.script(Loop())) == ()
    assert scopes(torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Tanh()))) == ()
    assert scopes(nn.ReLU()) == ()


GRAPH: Scopes = (("a::x", "one"), ("a::y", "two"), ("a::x", "three"))


def paths(names: list[str], graph: Scopes = GRAPH) -> dict[int, str]:
    start = np.arange(len(names)) * 10
    return scope_paths(names, np.stack([start, start + 10]), graph)


def test_operators_are_told_by_their_order() -> None:
    assert paths(["a::x", "a::y", "a::x"]) == {0: "one", 1: "two", 2: "three"}


def test_what_only_the_graph_or_only_the_run_knows_does_not_matter() -> None:
    assert paths(["a::new", "a::x", "mark", "a::x"]) == {1: "one", 3: "three"}


@pytest.mark.parametrize("names", [["a::x", "a::x", "a::y"], ["a::x", "a::y"], ["a::x"] * 3, []])
def test_another_order_or_count_tells_nothing(names: list[str]) -> None:
    assert paths(names) == {}


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
        found = scope_paths([names[i] for i in order], interval, graph)
        assert found == {place: expected[i] for place, i in enumerate(order)}


def test_what_branches_leave_open_is_not_told() -> None:
    branch: Scopes = (("a::x", None), ("a::x", "one"), ("a::x", None), ("a::y", "two"))
    assert paths(["a::x", "a::y"], branch) == {0: "one", 1: "two"}
    assert paths(["a::x", "a::x", "a::y"], branch) == {2: "two"}
    assert paths(["a::x"] * 3 + ["a::y"], branch) == {1: "one", 3: "two"}
    assert paths(["a::x"] * 4 + ["a::y"], branch) == {}


def test_what_is_told_despite_branches_is_right() -> None:
    draw, told = random.Random(2), 0
    for _ in range(200):
        graph = tuple(
            (f"a::{draw.choice('xyz')}", f"path{i}" if draw.random() < 0.7 else None)
            for i in range(10)
        )
        ran = [node for node in graph if node[1] is not None or draw.random() < 0.5]
        found = paths([name for name, _ in ran], graph)
        assert all(ran[i][1] == path for i, path in found.items())
        told += len(found)
    assert told > 600
