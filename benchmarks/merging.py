"""Merging: seconds and memory for 2,000 spans of 150 runs a pass, and 1,000,000 of 3 runs.

Run it as `python benchmarks/merging.py`. Each line is measured in a fresh process, best of three
(memory: of the first). The model is a layer with blocks in it, one after the other; each block is
a layer with four operators, and another operator in each of these. The passes are bare, region,
layer and op; recording costs time, and the speed differs from run to run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from correlation import peak_mib

from xsp.level import Kind
from xsp.matching import Pass, Run, ladder
from xsp.provider import span_rows
from xsp.reading.merge import merge

SIZES = ((2_000, 150), (1_000_000, 3))  # spans of a run, runs of each pass
COST_NS = {Kind.LAYER: 300, Kind.OP: 800}  # of recording one
# Kind, name, self time in ns, and what lies inside.
OPERATOR = (Kind.OP, "aten::linear", 2_000, [(Kind.OP, "aten::addmm", 1_000, [])])
BLOCK = (Kind.LAYER, "block", 500, [OPERATOR] * 4)
SPANS = 9  # of a block
NAMES = 16  # names that blocks have in turn: others are told apart by their ordinals


def record(
    rows: list[list[Any]], span: Any, recorded: frozenset[Kind], now: int, above: int
) -> int:
    """Add the recorded spans of a tree that begins `now`; return when the tree ends."""
    kind, name, own, inside = span
    cost = COST_NS[kind] if kind in recorded else 0
    now += cost // 2
    if kind in recorded:
        rows.append([kind.value, name, now, 0, above])
        above = len(rows) - 1
    row = rows[-1] if kind in recorded else None
    now += own // 2
    for each in inside:
        now = record(rows, each, recorded, now, above)
    now += own - own // 2
    if row:
        row[3] = now
    return now + cost - cost // 2


def run(pass_: Pass, blocks: int, *, speed: float, number: int) -> Run:
    """Return a run in which everything takes `speed` times as long as usual."""
    rows: list[list[Any]] = []
    length = record(rows, BLOCK, pass_.kinds, 0, -1)
    latency = round(blocks * length * speed)
    if not pass_.kinds:
        return Run(pass_, latency, round=number)
    outer = [("region", "predict"), ("layer", "Model")][: 1 + (Kind.LAYER in pass_.kinds)]
    kind, name, start, end, above = zip(*rows, strict=True) if rows else [()] * 5
    block = np.arange(blocks if rows else 0).repeat(len(rows))
    begin, finish, parent = (np.resize(each, len(block)) for each in (start, end, above))
    times = [np.rint((block * length + each) * speed).astype(np.int64) for each in (begin, finish)]
    place = len(outer) + block * len(rows) + parent
    frame = span_rows(
        {
            "kind": [each for each, _ in outer] + list(kind) * blocks,
            "name": [each for _, each in outer] + names(name, blocks),
            "start_ns": np.concatenate([np.zeros(len(outer), np.int64), times[0]]),
            "end_ns": np.concatenate([np.full(len(outer), latency), times[1]]),
            "thread": 1,
        }
    )
    parents = [*range(-1, len(outer) - 1), *np.where(parent < 0, len(outer) - 1, place)]
    return Run(
        pass_, latency, frame.with_columns(parent=pl.Series(parents, dtype=pl.Int64)), 0, number
    )


def names(of_block: tuple[str, ...], blocks: int) -> list[str]:
    """Return the names of the spans of all blocks."""
    return [
        f"{name}{number % NAMES}" if name == "block" else name
        for number in range(blocks)
        for name in of_block
    ]


def runs_of_passes(spans: int, rounds: int) -> list[Run]:
    """Return so many runs of each pass, of a model that has about so many spans."""
    passes = ladder({Kind.REGION, Kind.LAYER, Kind.OP})
    speeds = np.exp(np.random.default_rng(0).normal(0, 0.01, (rounds, len(passes))))
    return [
        run(pass_, spans // SPANS, speed=float(speed), number=number)
        for number, of_round in enumerate(speeds)
        for pass_, speed in zip(passes, of_round, strict=True)
    ]


def measure(spans: int, rounds: int) -> None:
    """Print the spans of a trace, best seconds of three (elapsed, processor), and peak MiB."""
    merge(runs_of_passes(100, 3))
    runs = runs_of_passes(spans, rounds)
    Path("/proc/self/clear_refs").write_text("5")  # lowers the peak to what is resident now
    before, peak, seconds, cpu = peak_mib(), 0.0, [], []
    for _ in range(3):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        height = merge(runs).spans.height
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
        peak = peak or peak_mib()
    print(height, min(seconds), min(cpu), peak, peak - before)


def main() -> None:
    memory = f"{'peak MiB':>9} {'above start':>11}"
    print(f"{'spans':>9} {'runs a pass':>11} {'seconds':>8} {'CPU s':>6} {memory}")
    for spans, rounds in SIZES:
        command = [sys.executable, __file__, str(spans), str(rounds)]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        count, seconds, cpu, peak, above = (float(part) for part in line.split())
        times = f"{seconds:>8.2f} {cpu:>6.2f}"
        print(f"{count:>9,.0f} {rounds:>11} {times} {peak:>9,.0f} {above:>11,.0f}", flush=True)


if __name__ == "__main__":
    measure(*map(int, sys.argv[1:])) if len(sys.argv) > 1 else main()
