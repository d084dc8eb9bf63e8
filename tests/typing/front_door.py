"""Types of the public names, beyond the README, for mypy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

import xsp


def add(first: int, second: int) -> int:
    return first + second


decorated: Callable[[int, int], int] = xsp.profile(levels="framework")(add)
spanned: Callable[[int, int], int] = xsp.span("add", level="model", size=3)(add)

prof = xsp.profile(levels=("model", "framework"), runs=3, budget=1.5, repeat=True)
with prof as entered, entered.step("request"):
    total: int = decorated(1, 2)

trace: xsp.Trace = xsp.measure(add, 1, second=2, levels=xsp.Level.MODEL, progress=print)
frame: pl.DataFrame = trace.spans
path: Path = trace.save("add.xsp")
warnings: tuple[xsp.TraceWarning, ...] = xsp.load(path).warnings
codes: list[str] = [warning.code for warning in warnings]

# What is wrong must not pass: mypy tells of each comment that is not needed.
xsp.profile(levels=2.5)  # type: ignore[arg-type]
xsp.load(1)  # type: ignore[arg-type]
