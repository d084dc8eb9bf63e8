"""How much slower is a loop in a `with` block once the block's budget is spent? Goal: 1 %.

In turns, in one process: a stretch of the loop without a block, the loop in a block until the
budget is spent and then as long a stretch, and a stretch without a block again. The stretch in the
block is compared with the mean of the two around it; the noise is the same for a stretch without a
block between two such stretches. Both are medians over the turns.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from time import perf_counter, perf_counter_ns

import numpy as np
import torch
from table import percent, print_header, print_row
from torch import nn
from torch.nn import functional

import xsp

COLUMNS = (("a step of the loop", 26), ("plain us", 9), ("watched", 9), ("noise", 7), ("steps", 7))
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEAD = 200  # steps by which the length of a stretch is chosen
BUDGET_S = 0.2  # of the block: three times as long it runs before what is timed
Step = Callable[[], object]


def linear() -> Step:
    """Return a call of some microseconds, of which watching would be a large part."""
    model, x = nn.Linear(64, 64).eval(), torch.randn(8, 64)
    return lambda: model(x)


def training() -> Step:
    """Return a quick training step."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(8, 64), torch.randint(0, 10, (8,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def convolutions() -> Step:
    """Return a call of some milliseconds."""
    blocks = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()) for _ in range(8)]
    model, x = nn.Sequential(*blocks).eval(), torch.randn(1, 32, 48, 48)
    return lambda: model(x)


STEPS = {
    "Linear, inference": linear,
    "MLP, training": training,
    "8 layers, inference": convolutions,
}


def timed(step: Step, steps: int) -> float:
    """Return how many ns so many steps take."""
    gc.collect()
    begin = perf_counter_ns()
    for _ in range(steps):
        step()
    return float(perf_counter_ns() - begin)


def timed_in_a_block(step: Step, steps: int) -> float:
    """Return how many ns so many steps take in a block whose budget is spent."""
    with xsp.profile(2, budget=BUDGET_S, repeat=False, progress=False):
        until = perf_counter() + 3 * BUDGET_S
        while perf_counter() < until:
            step()
        return timed(step, steps)


def apart(middle: float, *around: float) -> float:
    """Return by which fraction a stretch is longer than the mean of those around it."""
    return middle / float(np.mean(around)) - 1


def compare(name: str, seconds: float, turns: int) -> None:
    """Print the line of one loop."""
    step = STEPS[name]()
    timed(step, LEAD)
    steps = max(int(seconds * 1e9 / timed(step, LEAD) * LEAD), 10)
    plain, watched = [timed(step, steps)], []
    for _ in range(turns):
        watched.append(timed_in_a_block(step, steps))
        plain += [timed(step, steps), timed(step, steps)]
    found = [apart(each, plain[2 * at], plain[2 * at + 1]) for at, each in enumerate(watched)]
    noise = [abs(apart(b, a, c)) for a, b, c in zip(plain, plain[1:], plain[2:], strict=False)]
    cells = [name, f"{np.median(plain) / steps / 1e3:.1f}", f"{np.median(found):+.2%}"]
    print_row([*cells, percent(float(np.median(noise))), f"{steps:,}"], WIDTHS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each stretch")
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print_header("A loop in a block whose budget is spent, beside the loop without a block")
    print_row(HEADINGS, WIDTHS)
    for name in STEPS:
        compare(name, given.seconds, given.turns)


if __name__ == "__main__":
    main()
