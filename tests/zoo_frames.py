"""Small frames of a zoo's results, of which every number is known."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from xsp.answer.zoo.row import SCHEMA
from xsp.answer.zoo.table import with_best

_USUAL: dict[str, Any] = {
    "framework": "torch", "precision": "float32", "device": "cpu", "compiled": False,
    "train": False, "threads": 2, "status": "measured", "warnings": [], "host": "crane",
    "machine": "a1b2c3", "started": "2026-11-21T08:00:00+00:00", "runs": 30,
    "basis": json.dumps({"torch": "2.15"}), "cpu": "Xeon 8488C", "cores": 2.0,
    "xsp_version": "1.0",
}  # fmt: skip
_SETTINGS = ("batch", "framework", "precision", "threads")


def row(model: str, batch: int | None = 1, **said: Any) -> dict[str, Any]:
    """Return a row: usual settings, what is said, and of a latency the throughput."""
    found = {**_USUAL, "model": model, "target": f"torchvision:{model}", "batch": batch, **said}
    kept = {name: found[name] for name in _SETTINGS}
    found.setdefault("settings", json.dumps(kept, sort_keys=True))
    for end, of in (("", ""), ("_low", "_high"), ("_high", "_low")):
        latency = found.get(f"latency{of}_ns")
        rate = 1e9 * batch / latency if latency and batch else None
        found.setdefault(f"throughput{end}_per_s", rate)
    return found


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return a frame of rows, with the best batch of each curve."""
    return with_best(pl.DataFrame(list(rows), schema=SCHEMA, orient="row"))
