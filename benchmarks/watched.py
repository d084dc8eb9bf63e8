"""Is what a block's trace says of a group the latency of steps without xsp? Within one block.

Runs of a program differ by more than xsp may change (`programs.py` says by how much), and what
one moment of the machine does to a run, another does not. So here a program runs in one block all
the time, in which all of xsp's hooks are taken out for some steps in a row, by lot. The
program reads the clock around all of them. What xsp says of a group is compared with the
steps that it did not see. `within.py` looks more closely, at fewer programs.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from time import perf_counter

import torch
from clocked import Clock, Label, seed
from frameworks import be_quiet
from programs import PROGRAMS
from table import percent, print_header, print_row
from turns import statistic

import xsp

COLUMNS = (
    ("program", 13),
    ("evaluations", 42),
    ("seen", 7),
    ("alone", 7),
    ("alone us", 9),
    ("xsp", 9),
    ("noise", 8),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEGEND = """
alone      steps that xsp did not see, and their latency by the program's clock
xsp        by how much the latency is larger that the trace gives
noise      how far every second stretch alone lies from the others"""
IN_A_ROW = 24
SETTLING = 4  # steps after hooks were taken out, which do not count


class Turns:
    """Takes the hooks of a block out and puts them in again, and notes what they were.

    Args:
        profile: The block, which has begun.
        clock: The program's clock.

    Attributes:
        alone: For each stretch that was unwatched the numbers of its steps, in the clock's
            order, that count.
    """

    def __init__(self, profile: xsp.profile, clock: Clock) -> None:
        self.alone: list[list[int]] = []
        assert profile._recorder is not None
        self._recorder, self._clock = profile._recorder, clock
        self._left = 0

    def before(self) -> None:
        """Note what the next step is, and draw lots whether it begins a stretch alone."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._recorder.resume()
            elif self._left <= IN_A_ROW - SETTLING:
                self.alone[-1].append(len(self._clock.times))
        elif random.random() < 0.5 / IN_A_ROW:
            self._recorder.suspend(between=True)
            self._left = IN_A_ROW
            self.alone.append([])

    def end(self) -> None:
        """Put the hooks in again, if they are out."""
        self._recorder.resume()


def measure(name: str, seconds: float, levels: int) -> None:
    """Run a program in a block for some seconds, and print a line for each of its groups."""
    seed()
    clock = Clock()
    program = PROGRAMS[name](clock)
    program.run()
    clock.times.clear()
    with xsp.profile(levels, budget=None, progress=False, repeat=False) as profile:
        turns = Turns(profile, clock)
        clock.before = turns.before
        until = perf_counter() + seconds
        while perf_counter() < until:
            program.run()
        clock.before = lambda: None
        turns.end()
    groups = profile.trace.metadata["groups"]
    alone = latencies(clock, turns.alone)
    halves = [latencies(clock, turns.alone[first::2]) for first in (0, 1)]
    for label in alone:
        said = [each for each in groups if label.names(each) and each["latency_ns"]]
        if len(alone[label]) < 40 or not said:
            continue
        plain = statistic(alone[label])
        calls = sum(each["calls"] for each in said)
        latency = sum(each["calls"] * each["latency_ns"] for each in said) / calls
        one, other = (statistic(half[label]) for half in halves)
        cells = [name, str(label), f"{calls:,}", f"{len(alone[label]):,}", f"{plain / 1e3:.0f}"]
        cells.append(f"{100 * (latency / plain - 1):+.1f} %")
        print_row([*cells, percent(abs(one / other - 1))], WIDTHS)


def latencies(clock: Clock, stretches: Sequence[Sequence[int]]) -> dict[Label, list[int]]:
    """Return the latencies of steps in ns, given their numbers in each stretch."""
    found = defaultdict(list)
    for number in chain.from_iterable(stretches):
        if number < len(clock.times):
            label, begin, end = clock.times[number]
            found[label].append(end - begin)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    one_thread = [name for name in PROGRAMS if name != "server"]
    parser.add_argument("--programs", nargs="+", choices=one_thread, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each program")
    parser.add_argument("--levels", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    be_quiet()
    print_header("Steps in a block against unwatched ones in the same block, one thread")
    print_row(HEADINGS, WIDTHS)
    for name in given.programs or one_thread:
        measure(name, given.seconds, given.levels)
    print(LEGEND)


if __name__ == "__main__":
    main()
