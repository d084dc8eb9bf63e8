"""Measures the cost of recording between a span's two ends: by empty spans, and in a model.

Empty spans are what a session makes while it warms up; here that is done many times. In a
model of small layers, the recorded length of each layer is compared with its ground truth
(`truth.py`), in turns: what is left between the two is the cost inside, seen where it is
taken off.
"""

from __future__ import annotations

import numpy as np
import torch
from table import print_header, print_row
from torch import nn
from truth import time_layers
from turns import settle

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Provider, Request
from xsp.record.session.calibration import calibrate, inside_cost
from xsp_levels.framework.torch.provider import Torch
from xsp_levels.model import Model

SESSIONS = 60
TURNS = 60
EVALUATIONS = 20
WIDTHS = (46, 8, 8, 8)


class Block(nn.Module):
    """Layers of about 1 to 5 us."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.relu, self.nothing, self.dropout = nn.ReLU(), nn.Identity(), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the layers, one after the other."""
        return self.dropout(self.nothing(self.norm(self.relu(self.linear(x)))))


def by_empty_spans(provider: Provider, kind: Kind) -> np.ndarray:
    """Return the cost inside as many sessions would find it, in ns."""
    found = []
    for _ in range(SESSIONS):
        made = calibrate(provider, kind, SystemClock())
        cost = inside_cost(made) if made is not None else None
        found += [cost.cost_ns] if cost is not None else []
    return np.array(found)


def in_a_model() -> np.ndarray:
    """Return by how much each recorded layer is longer than its ground truth, in ns."""
    model, x = nn.Sequential(Block(), Block(), Block()).eval(), torch.ones(1, 8)
    paths = [name for name, _ in model.named_modules() if "." in name]
    turns = [
        [recorded[path] - true[path] for path in paths]
        for recorded, true in ((_recorded(model, x), _true(model, x, paths)) for _ in range(TURNS))
    ]
    return np.median(turns, axis=0)


def _recorded(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    provider = Torch()
    provider.start(SystemClock(), Request(frozenset({Kind.REGION, Kind.LAYER}), whole_model=True))
    settle(lambda: model(x))
    for _ in range(EVALUATIONS):
        model(x)
    rows = provider.spans(provider.stop())
    took = (rows["end_ns"] - rows["start_ns"]).to_list()
    lengths: dict[str, list[int]] = {}
    for path, length in zip(rows["attr.module_path"], took, strict=True):
        lengths.setdefault(path, []).append(length)
    return {path: _quiet(values[-EVALUATIONS:]) for path, values in lengths.items()}


def _true(model: nn.Module, x: torch.Tensor, paths: list[str]) -> dict[str, float]:
    return {path: _quiet(time_layers(model, x, [path], EVALUATIONS)[path, 0]) for path in paths}


def _quiet(values: list[float] | list[int]) -> float:
    """Return the mean of the shorter half, which other programs disturb least."""
    return float(np.mean(np.sort(values)[: max(1, len(values) // 2)]))


def main() -> None:
    torch.set_num_threads(1)
    print_header("What recording costs inside a span, in ns: quartiles")
    print_row(("what", "lower", "median", "upper"), WIDTHS)
    with torch.inference_mode():
        _print("xsp.span, by empty spans", by_empty_spans(Model(), Kind.REGION))
        _print("layer, by empty spans", by_empty_spans(Torch(), Kind.LAYER))
        _print("layer, in a model against the ground truth", in_a_model())
        _print("operator, by empty spans", by_empty_spans(Torch(), Kind.OP))


def _print(what: str, values: np.ndarray) -> None:
    print_row((what, *(f"{value:.0f}" for value in np.quantile(values, (0.25, 0.5, 0.75)))), WIDTHS)


if __name__ == "__main__":
    main()
