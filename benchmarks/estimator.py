"""How far can xsp's numbers be trusted? Simulated measurements against known truth.

A machine with moods is simulated (`tests/simulator`): what it evaluates, what recording costs and
how its speed changes are all known. xsp's own plan asks for visits, its session makes them on a
simulated clock, and its merging says how long each span takes. Each condition is measured again
and again, each time with another seed; the truth is the 20 % trimmed mean of each span over the
long run of the mood, with nothing recorded, all moments alike (with drift: over the moments of
the measurement's own runs).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from time import perf_counter

from table import percent, print_header, print_row

# Each process has one thread, and polars reads this when it is imported.
os.environ |= {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from simulator import COSTS, MOODS, TREES, Condition, Scores

SMALL, MIDDLE, LARGE, SLOW = TREES
SOME_MOODS = ("calm 1 %", "calm 10 %", "bursts 60 ms", "drift 3 s", "level 1 s", "processes 2 %")
COLUMNS = (
    ("costs", 6),
    ("mood", 13),
    ("tree", 18),
    ("runs", 7),
    ("made", 5),
    ("time", 7),
    ("of", 6),
    ("bias", 8),
    ("p50", 7),
    ("p95", 7),
    ("cover", 6),
    ("half", 7),
    ("width", 5),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEGEND = """
mood   how the machine's speed changes; "ten times": one step takes ten times as long
runs   steps on each pass that were asked for; "default": until xsp's plan has enough
made   steps on the pass with the fewest, on average
time   simulated seconds that a measurement takes
of     the model, its layers, or operators that take more than 5 us
bias   mean error of the latencies
p50    median of the absolute errors; p95: their 95th percentile
cover  share of the 95 % intervals that hold the truth
half   mean half width of these intervals
width  mean half width over that of an oracle: 1.96 standard deviations of the latencies that
       equal measurements find"""
SHOWN = ("model", "layers", "ops")


def quick_conditions() -> Iterator[tuple[Condition, int]]:
    """Yield conditions, each with how often it is measured, for less than a minute in all."""
    for mood in MOODS:
        yield Condition("equal", mood, MIDDLE), 8
    for costs in COSTS[1:]:
        yield Condition(costs, "calm 1 %", MIDDLE, runs=30), 12
    yield Condition("equal", "calm 1 %", SLOW, runs=4, ten_times=True), 20


def all_conditions() -> Iterator[tuple[Condition, int]]:
    """Yield all conditions, each with how often it is measured."""
    for mood in MOODS:
        yield Condition("equal", mood, MIDDLE), 40
    for costs, mood in product(COSTS[1:], SOME_MOODS):
        yield Condition(costs, mood, MIDDLE), 12
    for mood in SOME_MOODS:
        yield Condition("equal", mood, SMALL), 12
        yield Condition("equal", mood, SLOW), 40
    for costs, runs in product(COSTS, (10, 30, 150)):
        yield Condition(costs, "calm 1 %", MIDDLE, runs=runs), 20
    for mood in MOODS:
        yield Condition("equal", mood, MIDDLE, runs=30), 20
    for costs in ("equal", "kind"):
        yield Condition(costs, "calm 3 %", LARGE), 8
    for runs in (3, 4, 5):
        yield Condition("equal", "calm 1 %", SLOW, runs=runs, ten_times=True), 60


def score_all(conditions: list[tuple[Condition, int]]) -> Iterator[tuple[Condition, Scores]]:
    """Yield the scores of each condition, measured on all cores."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = [
            (condition, pool.submit(condition.scores, range(times)))
            for condition, times in conditions
        ]
        for condition, future in waiting:
            yield condition, future.result()


def report(condition: Condition, scores: Scores) -> None:
    """Print the lines of one condition."""
    runs = "default" if condition.runs is None else str(condition.runs)
    mood = "ten times" if condition.ten_times else condition.mood
    cells = [condition.costs, mood, condition.tree, runs]
    cells += [f"{scores.runs:.0f}", f"{scores.seconds:.1f} s"]
    for name in SHOWN:
        group = scores.group(name)
        errors = [percent(value) for value in (group.bias.value, group.p50, group.p95)]
        rest = [f"{group.coverage.value:.3f}", percent(group.half.value)]
        rest += [f"{group.width.value:.2f}"]
        print_row([*cells, name, *errors, *rest], WIDTHS)
        cells = [""] * len(cells)
    if condition.ten_times:
        wrong, silent = scores.misled()
        print(
            f"{wrong} of {len(scores.scores)} off by more than 5 %, {silent} without a word of it"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="some conditions, one minute")
    parser.add_argument("--costs", nargs="+", choices=COSTS, metavar="COSTS")
    parser.add_argument("--moods", nargs="+", choices=MOODS, metavar="MOOD")
    parser.add_argument("--trees", nargs="+", choices=TREES, metavar="TREE")
    parser.add_argument("--times", type=float, default=1.0, help="as many measurements more")
    chosen = parser.parse_args()
    conditions = [
        (condition, max(2, round(times * chosen.times)))
        for condition, times in (quick_conditions() if chosen.quick else all_conditions())
        if condition.costs in (chosen.costs or COSTS)
        and condition.mood in (chosen.moods or MOODS)
        and condition.tree in (chosen.trees or TREES)
    ]
    print_header("Simulated measurements against known truth")
    print_row(HEADINGS, WIDTHS)
    began = perf_counter()
    for condition, scores in score_all(conditions):
        report(condition, scores)
    print(f"{LEGEND}\n\n{perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
