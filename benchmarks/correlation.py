"""Correlation: seconds and memory for 10,000, 100,000 and 1,000,000 rows.

Run it as `python benchmarks/correlation.py`. Each line is measured in a fresh
process, best of three (memory: of the first); rows come shuffled. The inference
trees hold layers nested 4 to 8 deep, operators nested in operators under them, on
four threads; the training trees hold a backward pass as well, whose operators
are put under the layers that made them.
"""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from xsp.provider.row import SpanRows, span_rows
from xsp.reading.correlation.parent import correlate

SIZES = (10_000, 100_000, 1_000_000)
THREADS = 4
EVALUATIONS = 10
COLUMNS = ("kind", "name", "start_ns", "end_ns", "thread", "sequence", "forward_thread")


@dataclass
class Recorder:
    """Rows of one thread in the making; time is a counter that only grows."""

    thread: int
    random: random.Random
    now: int
    rows: list[list[Any]] = field(default_factory=list)
    made: list[int] = field(default_factory=list)

    def begin(self, kind: str, name: str, sequence: int | None = None) -> list[Any]:
        """Open a span and return its row."""
        row = [kind, name, self.now, 0, self.thread, sequence, None]
        self.rows.append(row)
        self.now += self.random.randint(50, 2000)
        return row

    def end(self, row: list[Any]) -> None:
        """Close a span."""
        self.now += self.random.randint(50, 2000)
        row[3] = self.now

    def operator(self, depth: int) -> None:
        """Record an operator with up to `depth` generations inside."""
        self.made.append(len(self.made))
        row = self.begin("op", f"aten::op{self.random.randrange(40)}", self.made[-1])
        for _ in range(self.random.choice((0, 0, 1, 2)) if depth else 0):
            self.operator(depth - 1)
        self.end(row)

    def layer(self, depth: int, size: int) -> None:
        """Record a layer with up to `depth` generations inside, unless `size` rows are there."""
        row = self.begin("layer", f"layer{self.random.randrange(10)}")
        while depth and len(self.rows) < size and self.random.random() < 0.75:
            self.layer(depth - 1, size)
        for _ in range(self.random.randint(1, 4)):
            self.operator(3)
        self.end(row)

    def forward(self, size: int) -> None:
        """Record about `size` rows of a forward pass."""
        row = self.begin("region", "forward")
        while len(self.rows) < size:
            self.layer(self.random.randint(3, 7), size)
        self.end(row)

    def backward(self) -> None:
        """Record one operator for each of the forward pass, in reverse."""
        row = self.begin("region", "backward")
        for sequence in reversed(self.made):
            op = self.begin("op", "evaluate_function", sequence)
            op[6] = self.thread
            self.end(op)
        self.end(row)


def evaluation(seed: int, *, rows: int, training: bool, start: int) -> list[list[Any]]:
    """Return one step's rows, the root first."""
    recorded, end = [], start
    for thread in range(THREADS):
        recorder = Recorder(thread, random.Random(seed * THREADS + thread), start)
        recorder.forward(rows // THREADS * (5 if training else 9) // 9)
        if training:
            recorder.backward()
        recorded += recorder.rows
        end = max(end, recorder.now)
    return [["region", "evaluation", start, end, 0, None, None], *recorded]


def generate(rows: int, *, training: bool) -> tuple[SpanRows, SpanRows]:
    """Return roots and shuffled rows, about as many as asked for."""
    roots, inside, start = [], [], 10**12
    for number in range(EVALUATIONS):
        root, *below = evaluation(number, rows=rows // EVALUATIONS, training=training, start=start)
        roots.append(root)
        inside += below
        start = root[3] + 1000
    return as_rows(roots), as_rows(inside).sample(fraction=1, shuffle=True, seed=0)


def as_rows(rows: list[list[Any]]) -> SpanRows:
    return span_rows(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)))


def peak_mib() -> float:
    """Return the highest resident memory so far, or since it was last reset."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return (
        int(found[1]) / 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )


def measure(folder: Path) -> None:
    """Print rows, best seconds of three (elapsed, processor), and peak MiB above start."""
    roots, rows = (pl.read_parquet(folder / f"{name}.parquet") for name in ("roots", "rows"))
    correlate(roots, rows.head(1000))
    Path("/proc/self/clear_refs").write_text("5")  # lowers the peak to what is resident now
    before, peak, seconds, cpu = peak_mib(), 0.0, [], []
    for _ in range(3):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        correlated = correlate(roots, rows)
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
        peak = peak or peak_mib() - before
    assert not correlated.outside
    print(rows.height, min(seconds), min(cpu), peak)


def main() -> None:
    times = f"{'seconds':>8} {'CPU s':>6} {'us/row':>7}"
    print(f"{'tree':<10} {'rows':>9} {times} {'peak MiB above start':>21}")
    for training in (False, True):
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                roots, rows = generate(size, training=training)
                roots.write_parquet(Path(folder, "roots.parquet"))
                rows.write_parquet(Path(folder, "rows.parquet"))
                command = [sys.executable, __file__, folder]
                line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            count, seconds, cpu, peak = (float(part) for part in line.split())
            tree = "training" if training else "inference"
            per_row = seconds / count * 1e6
            times = f"{seconds:>8.3f} {cpu:>6.2f} {per_row:>7.2f}"
            print(f"{tree:<10} {count:>9,.0f} {times} {peak:>21.0f}")


if __name__ == "__main__":
    measure(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
