"""How long `xsp zoo report` of 100,000 measurements takes, and how large the page is.

Results are synthetic. The aim of the whole command is 10 seconds and 15 MB, of 12,500 models at
eight batches and of 100,000 models at one, and that a browser shows the page.

    python benchmarks/zoo_report.py [ROWS]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "zoo"))

from synthetic_results import frame

from xsp.show.page import zoo_report
from xsp.zoo import TABLES, summary

_ROWS = 100_000
_BATCHES = 8  # of each model in synthetic results


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else _ROWS
    zoo_report(frame(_BATCHES), Path(tempfile.gettempdir()) / "warm.html", name="warm")  # imports
    each = frame(rows)
    _measure("eight batches of a model", each)
    _measure("one batch of a model", _alone(each))


def _alone(each: pl.DataFrame) -> pl.DataFrame:
    """Return the same results, each of a model of its own."""
    names = pl.format("{}.{}", "model", "batch")
    settings = pl.col("settings").str.replace(r'"batch": \d+', '"batch": 1')
    return each.with_columns(
        model=names, target=names, settings=settings, batch=pl.lit(1), optimal_batch=None
    ).cast({"optimal_batch": pl.Int64, "batch": pl.Int64})


def _measure(what: str, results: pl.DataFrame) -> None:
    began = time.perf_counter()
    for table in TABLES.values():
        table(results)
    tables = time.perf_counter() - began
    began = time.perf_counter()
    summary(results)
    summed = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        path = zoo_report(results, Path(folder) / "zoo.html", name="synthetic")
        took, size = time.perf_counter() - began, path.stat().st_size / 1e6
        command = _command(results, Path(folder))
    print(
        f"{results.height:,} rows, {what}: command {command:.1f} s, {size:.1f} MB; "
        f"of that the page {took:.1f} s; all tables {tables:.1f} s, summary {summed:.1f} s"
    )


def _command(results: pl.DataFrame, folder: Path) -> float:
    """Return how many seconds the command takes, from the start of Python to its end."""
    results.write_parquet(folder / "results.parquet")
    line = [sys.executable, "-m", "xsp", "zoo", "report", ".", "-o", "command.html"]
    began = time.perf_counter()
    subprocess.run(line, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
