from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Records, Request, pack, unpack
from xsp_levels.framework.torch.profiler import operand
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


def test_types_in_a_list_are_named_as_elsewhere() -> None:
    half, wide = torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.complex64)
    rows = rows_of(lambda: (torch.cat([half, wide]), half + wide))
    assert given(rows, "aten::cat")[1] == given(rows, "aten::add")[1] == ["bfloat16", "complex64"]


def test_only_tensors_have_a_shape() -> None:
    rows = rows_of(lambda: torch.add(A, torch.ones(()), alpha=2) * 3.0)
    assert given(rows, "aten::add") == ([[2, 3], []], ["float32", "float32"])
    assert given(rows, "aten::empty") == ([], [])


def test_a_list_that_the_profiler_does_not_look_into_is_not_known() -> None:
    rows = rows_of(lambda: A[torch.tensor([0])])
    assert given(rows, "aten::index") == ([[2, 3], None], ["float32", None])


def test_a_list_is_not_known_where_there_is_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operand, "_seen", lambda results, wanted: {})
    rows = rows_of(lambda: torch.cat([A, B], 0))
    assert given(rows, "aten::cat") == ([None], [None])


def test_marks_of_the_user_have_no_operands() -> None:
    def work() -> None:
        with torch.profiler.record_function("a mark, by hand"):
            torch.cat([A, B])

    assert given(rows_of(work), "a mark, by hand") == ([], [])


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


def test_a_storage_with_parameters_of_several_modules_tells_nothing() -> None:
    model, flat = Two(), torch.ones(2 * 64)
    model.first.weight = nn.Parameter(flat[:64].view(8, 8))
    model.second.weight = nn.Parameter(flat[64:].view(8, 8))
    model.first.bias = model.second.bias = None
    assert [of for _, of in owners(model)] == [["norm"], None, None, None]


def test_a_storage_with_all_parameters_of_one_module_is_that_modules() -> None:
    model, flat = Two(), torch.ones(72)
    model.first.weight = nn.Parameter(flat[:64].view(8, 8))
    model.first.bias = nn.Parameter(flat[64:])
    assert [of for _, of in owners(model)] == [["norm"], ["first"], None, ["second"]]


def test_records_that_were_kept_say_the_same() -> None:
    class Joined(Two):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.first(x), self.second(x)[torch.tensor([0])]])

    provider, records = Torch(), evaluated(Joined(), torch.ones(2, 8))
    kept = unpack(provider, pack(provider, records))
    assert provider.spans(kept).equals(provider.spans(records))
