"""Measures the seconds of the analyses of dataflow on a graph of many operators.

    python benchmarks/dataflow.py [--operators 100000]

Each operator takes the outputs of up to two of the fifty before it, and four threads run them. The
times are processor times of one thread: the first analysis also builds the graph.
"""

from __future__ import annotations

import argparse
import random
import time
from heapq import heappop, heappush
from typing import Any

import polars as pl
from table import print_header, print_row

from xsp.analyses import advice, critical_path, parallelism, scheduling
from xsp.trace import Trace
from xsp.trace.document import SPAN_SCHEMA

THREADS, NEAR = 4, 50
WIDTHS = (16, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=100_000)
    count = parser.parse_args().operators
    print_header(f"Dataflow of {count:,} operators")
    trace = trace_of(count)
    print_row(("analysis", "seconds"), WIDTHS)
    for analysis in (scheduling, parallelism, critical_path, advice):
        begin = time.process_time()
        analysis(trace)
        print_row((analysis.name, f"{time.process_time() - begin:.2f}"), WIDTHS)


def trace_of(count: int) -> Trace:
    """Return the trace of a random graph on threads that are free as soon as possible."""
    chance, free, ends = random.Random(0), [(0, thread) for thread in range(THREADS)], list[int]()
    rows: list[dict[str, Any]] = []
    for number in range(count):
        sources = [number - 1 - chance.randrange(NEAR) for _ in range(chance.randrange(3))]
        sources = [source for source in sources if source >= 0]
        now, thread = heappop(free)
        start = max([now, *(ends[source] for source in sources)])
        ends.append(start + chance.randrange(1_000, 30_000))
        heappush(free, (ends[-1], thread))
        told = {"node": f"n{number}", "inputs": [f"n{source}" for source in sources]}
        rows.append(row(number + 2, "op", start, ends[-1], parent_id=1, thread=thread) | told)
    whole = row(1, "region", 0, max(ends), thread=0) | {"node": None, "inputs": None}
    frame = pl.DataFrame([whole, *rows], schema_overrides={"inputs": pl.List(pl.String)},
                         infer_schema_length=None)  # fmt: skip
    columns = [
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in SPAN_SCHEMA.items()
    ]
    spans = frame.select(*columns, attributes=pl.struct("node", "inputs"))
    return Trace(spans, {"name": "graph", "warnings": [], "levels": {}})


def row(number: int, kind: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    level = "model" if kind == "region" else "framework"
    known = {"span_id": number, "parent_id": None, "level": level, "kind": kind, "name": kind}
    times = {"start_ns": start, "end_ns": end, "latency_ns": float(end - start), "runs": 1}
    return known | times | {"path": f"{kind}#{number}"} | more


if __name__ == "__main__":
    main()
