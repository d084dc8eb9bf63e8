from __future__ import annotations

from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import xsp  # noqa: E402
from xsp.composition import side_by_side  # noqa: E402


class Exits(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that leaves its second layer out for small batches, and calls the first twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.first(self.first(x))
        return y if len(x) < 3 else self.second(y)


def test_the_layers_of_groups_stand_side_by_side() -> None:
    model = Exits().eval()
    with torch.inference_mode(), xsp.profile(levels=2, budget=0.5, progress=False) as prof:
        for _ in range(10):
            model(torch.ones(8, 4))
            model(torch.ones(2, 4))
    table = prof.side_by_side()
    large, small = (next(name for name in prof.groups if f"{n}×4" in name) for n in (8, 2))
    assert set(table.columns) == {"module_path", "module_class", "phase", large, small}
    rows = {row["module_path"]: row for row in table.iter_rows(named=True)}
    assert list(rows) == ["", "first", "second"]
    assert rows["second"][small] is None
    assert rows["second"][large] > 0
    for name in (large, small):  # both calls together
        calls = prof.groups[name].spans.filter(pl.col("path").str.contains(r"/first(#\d+)?$"))
        assert calls.height == 2
        assert rows["first"][name] == pytest.approx(calls["latency_ns"].sum())


def test_without_groups_there_are_no_layers() -> None:
    assert side_by_side({}).columns == ["module_path", "module_class", "phase"]
