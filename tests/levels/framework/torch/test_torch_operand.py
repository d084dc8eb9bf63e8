from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Records, Request
from xsp_levels.framework.torch.profiler.operator import OperatorRecorder, operator_rows
from xsp_levels.framework.torch.provider import Torch

A, B = torch.ones(2, 3), torch.ones(4, 3)


def rows_of(work: Callable[[], Any]) -> pl.DataFrame:
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), True)
    try:
        work()
    finally:
        records = recorder.stop()
    return operator_rows(records)


def given(rows: pl.DataFrame, name: str) -> tuple[Any, Any]:
    row = rows.filter(name=name).row(0, named=True)
    return row["attr.input_shapes"], row["attr.input_dtypes"]


def evaluated(model: Any, x: torch.Tensor) -> Records:
    provider = Torch()
    provider.start(SystemClock(), Request(frozenset({Kind.LAYER, Kind.OP}), detail=True))
    try:
        with torch.no_grad():
            model(x)
    finally:
        records = provider.stop()
    return records


@pytest.mark.parametrize(
    ("name", "work", "shapes"),
    [
        ("aten::cat", lambda: torch.cat([A, B]), [[2, 3], [4, 3]]),
        ("aten::stack", lambda: torch.stack([A, A]), [[2, 3], [2, 3]]),
        ("aten::_foreach_add", lambda: torch._foreach_add([A, B], 1.0), [[2, 3], [4, 3]]),
        ("aten::block_diag", lambda: torch.block_diag(A, B), [[2, 3], [4, 3]]),
        ("aten::einsum", lambda: torch.einsum("ij,kj->ik", A, B), [[2, 3], [4, 3]]),
        ("aten::cat", lambda: torch.cat([A] * 40), [[2, 3]] * 40),
        ("aten::cat", lambda: torch.cat([torch.ones(1), torch.ones(0)]), [[1], [0]]),
        ("aten::stack", lambda: torch.stack([torch.ones(())]), [[]]),
    ],
)
def test_lists_of_tensors_say_the_shape_of_each(
    name: str, work: Callable[[], Any], shapes: list[list[int]]
) -> None:
    assert given(rows_of(work), name) == (shapes, ["float32"] * len(shapes))


class Two(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.norm(x)).relu())


def owners(model: Any) -> list[tuple[str, Any]]:
    rows = Torch().spans(evaluated(model, torch.ones(2, 8))).filter(kind="op")
    wanted = ("aten::layer_norm", "aten::linear", "aten::relu")
    return [
        (name, of)
        for name, of in rows.select("name", "attr.parameters_of").iter_rows()
        if name in wanted
    ]


def test_operators_say_whose_parameters_they_were_given() -> None:
    assert owners(Two()) == [
        ("aten::layer_norm", ["norm"]),
        ("aten::linear", ["first"]),
        ("aten::relu", None),
        ("aten::linear", ["second"]),
    ]


def test_operators_of_an_exported_model_say_whose_parameters_they_were_given() -> None:
    exported = torch.export.export(Two(), (torch.ones(2, 8),)).module()
    assert owners(exported) == owners(Two())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_operators_of_a_jit_model_say_whose_parameters_they_were_given(how: str) -> None:
    model = Two()
    made = torch.jit.script(model) if how == "script" else torch.jit.trace(model, torch.ones(2, 8))
    assert owners(made) == owners(model)


def test_parameters_that_two_modules_share_are_both_modules() -> None:
    model = Two()
    model.second.weight, model.first.bias = model.first.weight, model.second.bias
    both = ["first", "second"]
    assert [of for _, of in owners(model)] == [["norm"], both, None, both]
