"""CTF: seconds and bytes for 1,000,000 events, and whether babeltrace2 reads them all.

Run it as `python benchmarks/ctf.py [EVENTS]`; its exit code is 1 where xsp writes fewer than
400,000 events per second of processor time, an event takes more than 40 bytes, or one is lost.
Events are the begins and ends of spans: operators of one layer, under names of PyTorch's. The
first line is `trace.export`, the best of three, the second babeltrace2, which prints every event,
and the third `xsp.load` of the folder, with babeltrace2 in it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import polars as pl
from table import print_header, print_row

import xsp
from xsp.trace.integrity import SPAN_SCHEMA

EVENTS = 1_000_000
FEWEST_PER_S, MOST_BYTES = 400_000, 40
ROUNDS = 3
NAMES = ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::mkldnn_convolution")
WIDTHS = (14, 9, 11, 6)


def trace(spans: int) -> xsp.Trace:
    """Return a trace in which chains of four operators lie in one layer."""
    row, depth = np.arange(spans), (np.arange(spans) - 2) % len(NAMES)
    chain = (row - 2) // len(NAMES) * 100_000
    inner = row >= 2
    start = np.where(inner, chain + depth * 1_000, 0)
    end = np.where(inner, chain + 90_000 - depth * 1_000, spans // len(NAMES) * 100_000 + 100_000)
    names = pl.Series(depth).replace_strict(dict(enumerate(NAMES)), return_dtype=pl.String)
    is_op = pl.Series(inner)
    columns: dict[str, Any] = {
        "span_id": row + 1,
        "parent_id": np.where(inner, np.where(depth == 0, 2, row), row),
        "start_ns": start,
        "end_ns": end,
        "latency_ns": (end - start).astype(np.float64),
    }
    kind = pl.when(is_op).then(pl.lit("op")).otherwise(pl.lit("layer"))
    frame = pl.DataFrame(columns).with_columns(
        parent_id=pl.when(pl.int_range(pl.len()) > 0).then("parent_id"),
        kind=pl.when(pl.int_range(pl.len()) > 0).then(kind).otherwise(pl.lit("region")),
        level=pl.lit("framework"),
        name=pl.when(is_op).then(names).otherwise(pl.lit("predict")),
        path=pl.format("predict/{}", "span_id"),
        runs=pl.lit(1),
        thread=pl.lit(1),
        attributes=pl.struct(exact=pl.lit(True)),
    )
    lacking = {name: pl.lit(None) for name in SPAN_SCHEMA if name not in frame.columns}
    typed = frame.with_columns(**lacking).select(
        *(pl.col(name).cast(dtype) for name, dtype in SPAN_SCHEMA.items()), "attributes"
    )
    return xsp.Trace(typed, {"name": "predict", "warnings": [], "began_unix_ns": 10**18})


def measured(what: str, work: Callable[[], int], events: int, rounds: int = 1) -> float:
    """Print a line of the table, of the quickest of some rounds; return the seconds of processor.

    Raises:
        SystemExit: An event was lost.
    """
    times = []
    for _ in range(rounds):
        wall, cpu = perf_counter(), process_time()
        found = work()
        times.append((process_time() - cpu, perf_counter() - wall))
        if found != events:
            raise SystemExit(f"{what}: {found:,} of {events:,} events")
    cpu, wall = min(times)
    print_row((what, f"{wall:.2f}", f"{cpu:.2f}", "0"), WIDTHS)
    return cpu


def printed(folder: Path) -> int:
    """Return how many events babeltrace2 prints."""
    done = subprocess.run(["babeltrace2", str(folder)], stdout=subprocess.PIPE, check=True)
    return done.stdout.count(b"\n")


def main(events: int) -> int:
    made = trace(events // 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model.ctf"
        print_header(f"CTF: {events:,} events")
        print_row(("", "seconds", "own CPU s", "lost"), WIDTHS)
        cpu = measured("trace.export", lambda: 2 * made.export(folder).sent, events, ROUNDS)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / events
        measured("babeltrace2", lambda: printed(folder), events)
        measured("xsp.load", lambda: 2 * len(xsp.load(folder)), events)
        per_s = f"{events / cpu:,.0f} events per second of processor time"
        print(f"written: {per_s}, {size:.1f} bytes each, {size * events / 1e6:.1f} MB")
    return int(events / cpu < FEWEST_PER_S or size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS))
