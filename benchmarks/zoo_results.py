"""Measures the time of keeping and reading a zoo's results, and their size.

    python benchmarks/zoo_results.py 1000 10000 100000

The rows are synthetic (tests/zoo/synthetic_results.py); nothing is measured but the folder.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "zoo"))

import synthetic_results

from xsp.zoo import TABLE, opened, read_results

FURTHER = 1_000  # rows that are kept beside those that are there


def main(counts: list[int]) -> None:
    print("|    rows | open | keep a row, mean | write the table | read | table | most memory |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            print(_line(count, Path(name)), flush=True)


def _line(count: int, folder: Path) -> str:
    synthetic_results.frame(count).write_parquet(folder / TABLE)
    further = synthetic_results.frame(count + FURTHER).tail(FURTHER).to_dicts()
    began = time.perf_counter()
    with opened(folder) as kept:
        opening = time.perf_counter() - began
        began = time.perf_counter()
        for row in further:
            kept.keep(row, None)
        keeping = (time.perf_counter() - began) / FURTHER
        began = time.perf_counter()
        kept.write()
        writing = time.perf_counter() - began
    began = time.perf_counter()
    read_results(folder)
    reading = time.perf_counter() - began
    size = (folder / TABLE).stat().st_size / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return (
        f"| {count:,} | {opening:.2f} s | {1e3 * keeping:.2f} ms | {writing:.2f} s "
        f"| {reading:.2f} s | {size:.1f} MiB | {most:.0f} MiB |"
    )


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [1_000, 10_000, 100_000])
