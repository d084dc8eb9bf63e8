from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

from xsp.clock import SystemClock
from xsp_levels.framework.torch.module.layer import LayerRecorder
from xsp_levels.framework.torch.module.module_path import LayerRecords
from xsp_levels.framework.torch.module.row import layer_rows


class Broken(Mapping[str, Any]):
    """A mapping that cannot be read, as one that loads its values when asked may be."""

    def __getitem__(self, key: str) -> Any:
        raise OSError("no such file")

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


@dataclass
class Lazy:
    tensor: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name == "tensor":
            raise ValueError("not yet")
        return super().__getattribute__(name)


class Taking(nn.Module):  # type: ignore[misc]
    def forward(self, given: Any, other: Any) -> Any:
        return other


class Giving(nn.Module):  # type: ignore[misc]
    def forward(self, other: Any, given: Any) -> Any:
        return given


def lazy() -> Lazy:
    made = object.__new__(Lazy)
    object.__setattr__(made, "tensor", None)
    return made


def endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def detail(model: Any, *args: Any, **kwargs: Any) -> tuple[Any, LayerRecords, pl.DataFrame]:
    recorder = LayerRecorder()
    recorder.start(SystemClock(), detail=True)
    try:
        result = model(*args, **kwargs)
    finally:
        records = recorder.stop()
    return result, records, layer_rows(records)


@pytest.mark.parametrize(
    ("value", "error"),
    [(Broken(), "OSError"), (lazy(), "ValueError"), (endless(), "RecursionError")],
)
def test_what_cannot_be_read_has_no_shapes_and_never_fails_the_call(value: Any, error: str) -> None:
    x = torch.ones(2, 3)
    result, records, rows = detail(Taking(), value, x)
    assert result is x
    assert rows["attr.input_shapes"].to_list() == rows["attr.input_dtypes"].to_list() == [None]
    assert rows["attr.output_shapes"].to_list() == [[[2, 3]]]
    result, records, rows = detail(Giving(), x, value)
    assert result is value
    assert rows["attr.output_shapes"].to_list() == rows["attr.output_dtypes"].to_list() == [None]
    (warning,) = records.warnings
    assert "2 times" in warning
    assert f"raised {error};" in warning
