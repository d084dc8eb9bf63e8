"""Are evaluations in a block as fast as unwatched ones? In turns, within one block.

Runs of a program differ by more than xsp may change (`programs.py` says by how much), and what
one moment of the machine does to a run, another does not. So here a program runs in one block all
the time. Where a visit begins in which nothing but clocks is read, it is drawn by lot whether
some evaluations in a row are left alone first: xsp's hooks are out. (In the middle of a visit the
evaluations after the hooks' return would be slow, and count.) The program reads the clock around
all of them. What xsp says of a group is compared with the evaluations that it did not see.
"""

from __future__ import annotations

import argparse
import gc
import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from time import perf_counter

import numpy as np
import torch
from clocked import Clock, Label, seed
from frameworks import be_quiet
from programs import PROGRAMS
from table import percent, print_header, print_row
from turns import statistic

import xsp
from xsp.composition.journal import with_pause_overhead
from xsp.program.recording import Recording
from xsp_levels.framework.torch.program.watcher import Watch

COLUMNS = (
    ("program", 13),
    ("evaluations", 42),
    ("seen", 7),
    ("alone", 7),
    ("alone us", 9),
    ("xsp", 9),
    ("noise", 8),
    ("tenth", 9),
)
HEADINGS, WIDTHS = zip(*COLUMNS, strict=True)
LEGEND = """
alone      evaluations that xsp did not see, and their latency by the program's clock
xsp        by how much the latency is larger that the trace gives
noise      how far every second stretch alone lies from the others
tenth      by how much the quickest tenth is slower of those that xsp counts and records nothing in:
           what the machine's moods do to the others, they do not show"""
IN_A_ROW = 24
SETTLING = 4  # evaluations after hooks were taken out, which do not count
SETTLED = 6  # evaluations after other work of xsp's, which do not count in the tenth


class Turns:
    """Takes the hooks of a block out and puts them in again, and notes what they were.

    Args:
        profile: The block, which has begun.
        clock: The program's clock.

    Attributes:
        alone: For each stretch that was unwatched the numbers of its evaluations, in the clock's
            order, that count.
    """

    def __init__(self, profile: xsp.profile, clock: Clock) -> None:
        self.alone: list[list[int]] = []
        self._profile, self._clock = profile, clock
        watches = [each for each in gc.get_objects() if type(each) is Watch]
        (self._watch,) = (each for each in watches if each._steps.evaluations is not None)
        self._hooked = True
        self._left = 0
        self._recording: Recording | None = None

    def before(self) -> None:
        """Note what the next evaluation is, and draw lots where a visit has begun."""
        if self._watch._steps.evaluations is None:  # the plan is complete
            return
        if not self._hooked:
            self._left -= 1
            if self._left == 0:
                self.end()
            elif self._left <= IN_A_ROW - SETTLING:
                self.alone[-1].append(len(self._clock.times))
            return
        before, self._recording = self._recording, self._profile._dispatching._recorder.current
        began = self._recording is not None and self._recording is not before
        if began and not self._recording.rung.kinds and random.random() < 0.5:
            self._take_out()
            self._hooked, self._left = False, IN_A_ROW
            self.alone.append([])

    def end(self) -> None:
        """Put the hooks in again, if they are out."""
        if not self._hooked:
            self._put_in()
        self._hooked = True

    def _take_out(self) -> None:
        watch = self._watch
        watch._steps.finish(watch._local.step)
        watch._entry.watch(None)
        watch._steps.unwatch()

    def _put_in(self) -> None:
        self._watch._steps.watch()
        self._watch._entry.watch(self._watch._code)


def measure(name: str, seconds: float, levels: int) -> None:
    """Run a program in a block for some seconds, and print a line for each of its groups."""
    seed()
    clock = Clock()
    program = PROGRAMS[name](clock)
    program.run()
    clock.times.clear()
    with xsp.profile(levels, budget=10 * seconds, progress=False, replay=False) as profile:
        turns = Turns(profile, clock)
        clock.before = turns.before
        until = perf_counter() + seconds
        while perf_counter() < until:
            program.run()
        clock.before = lambda: None
        turns.end()
    groups = profile.trace.metadata["groups"]
    alone, watched = latencies(clock, turns.alone), bare(clock, profile)
    halves = [latencies(clock, turns.alone[first::2]) for first in (0, 1)]
    for label in alone:
        said = [each for each in groups if label.names(each) and each["latency_ns"]]
        if len(alone[label]) < 40 or not said or not watched[label]:
            continue
        plain = statistic(alone[label])
        calls = sum(each["calls"] for each in said)
        latency = sum(each["calls"] * each["latency_ns"] for each in said) / calls
        one, other = (statistic(half[label]) for half in halves)
        cells = [name, str(label), f"{calls:,}", f"{len(alone[label]):,}", f"{plain / 1e3:.0f}"]
        cells.append(f"{100 * (latency / plain - 1):+.1f} %")
        cells.append(percent(abs(one / other - 1)))
        quick = np.percentile(watched[label], 10) / np.percentile(alone[label], 10) - 1
        print_row([*cells, f"{100 * quick:+.1f} %"], WIDTHS)


def latencies(clock: Clock, stretches: Sequence[Sequence[int]]) -> dict[Label, list[int]]:
    """Return the latencies of evaluations in ns, given their numbers in each stretch."""
    found = defaultdict(list)
    for number in chain.from_iterable(stretches):
        if number < len(clock.times):
            label, begin, end = clock.times[number]
            found[label].append(end - begin)
    return found


def bare(clock: Clock, profile: xsp.profile) -> dict[Label, list[int]]:
    """Return the latencies in ns, by xsp, of the evaluations in which only clocks are read."""
    begins = [begin for _, begin, _ in clock.times]
    found = defaultdict(list)
    place = 0
    for each in with_pause_overhead(profile._dispatching.journal).evaluations:
        place = place + 1 if each.went_on else 0
        if each.rung is not None and not each.rung.kinds and each.counts and place >= SETTLED:
            label, _, _ = clock.times[bisect(begins, each.begin_ns) - 1]
            found[label].append(each.ran_ns)
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
    print_header("Evaluations in a block against unwatched ones in the same block, one thread")
    print_row(HEADINGS, WIDTHS)
    for name in given.programs or one_thread:
        measure(name, given.seconds, given.levels)
    print(LEGEND)


if __name__ == "__main__":
    main()
