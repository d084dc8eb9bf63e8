"""Draws the windows of a program: the kinds of span that each records, and its length.

A window records one set of kinds for all groups of calls. Kinds come from a shuffled deck, so that
drift hits all alike and a program of twenty calls meets each of them:

    window      1       2          3       4       5 …      11
    records     layers  operators  layers  layers  nothing  …
    lasts       1 call  1 call     1 call  a sixteenth of the time so far, a quarter second at most

The sequence is a pure function of a seed, so that all ranks of a job make the same windows.
"""

from __future__ import annotations

import random
from enum import IntEnum


class Records(IntEnum):
    """Kind of a window: the spans that it records besides calls, passes, steps and parts."""

    NOTHING = 0
    LAYERS = 1
    SYSTEM = 2  # layers, and what the operating system does
    OPERATORS = 3  # and all that is deeper but the system, and layers
    DETAIL = 4  # likewise, and what costs time, such as shapes
    OUT = 5  # nothing at all: all hooks are out


# Seven of ten windows, two and one. Figures: benchmarks/notes/2026-11-windows.md.
_DECK = (Records.LAYERS,) * 7 + (Records.OPERATORS,) * 2 + (Records.NOTHING,)
_SHARE = 16  # of the time so far: with it 1,000 calls of 1 ms have 77 windows
LONGEST_NS = 250_000_000  # of a window
LONGEST_DEEP_NS = 50_000_000  # ending one costs 1.2 µs an operator: 25 ms for 20,000
FEWEST_DEEP = 5  # windows of operators, however slow the program
AT_FIRST_NS = 1_000_000_000  # in which windows of operators are as many as the deck has
DEEP_SHARE = 0.01  # of the time after that, by which windows of operators may slow the program
_FIRST_SHARE = 0.1  # of the time until then
_RECORDING = 0.3  # of a window of operators is their recording, by and large
MATTERS = 0.02  # of the time: what costs less is known well enough unlearned
_DETAIL_EVERY = 3  # of windows of operators: attributes are needed once, times more often
_SYSTEM_EVERY = 2  # of windows of layers, where the system is recorded


class Lottery:
    """Draws the windows of a program.

    Args:
        seed: Ranks of one job have the same.
        layers: Whether layers can be recorded.
        operators: Whether anything deeper can be.
        system: Whether what the operating system does can be.
    """

    def __init__(self, seed: int, *, layers: bool, operators: bool, system: bool = False) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self._layers, self._operators, self._system = layers, operators, system
        self._deck: list[Records] = []
        self.drawn = 0
        self.deep = 0  # windows of operators so far
        self.watched = 0  # windows so far that may record the system
        self.deep_ns = 0  # by which providers in windows have slowed the program, estimated

    def draw(self, elapsed_ns: int, cost: float | None) -> Records:
        """Return the kinds of span that the next window records.

        Args:
            elapsed_ns: Time since the program began.
            cost: Which part of the time recording layers takes, as far as is known; None: the
                windows must be those of all ranks, whatever any of them knows.
        """
        number, self.drawn = self.drawn, self.drawn + 1
        if number == 0:  # a profiler that starts would spoil the only cold call
            return self._of(Records.LAYERS, elapsed_ns, cost)
        if number == 1:
            return self._of(Records.OPERATORS, elapsed_ns, cost)
        if number == 2 and self._system:
            return self._of(Records.LAYERS, elapsed_ns, cost)
        if not self._deck:
            self._deck = list(_DECK)
            self._random.shuffle(self._deck)
        return self._of(self._deck.pop(), elapsed_ns, cost)

    def _of(self, drawn: Records, elapsed_ns: int, cost: float | None) -> Records:
        alike = cost is None
        may = self._operators and self._may_go_deep(self.deep, elapsed_ns, alike=alike)
        if drawn is Records.OPERATORS and may:
            self.deep += 1
            return Records.DETAIL if self.deep % _DETAIL_EVERY == 0 else Records.OPERATORS
        if drawn is Records.LAYERS and self._system and self.drawn > 1:
            self.watched += 1
            before = self.watched // _SYSTEM_EVERY
            if self.watched % _SYSTEM_EVERY and self._may_go_deep(before, elapsed_ns, alike=alike):
                return Records.SYSTEM
        if not self._layers or (drawn is Records.NOTHING and (cost is None or cost > MATTERS)):
            return Records.NOTHING
        return Records.LAYERS

    def _may_go_deep(self, before: int, elapsed_ns: int, *, alike: bool) -> bool:
        """Return whether there may be another window with providers armed, after some before."""
        if alike:  # by number alone, of which all ranks know
            return before < 2 * FEWEST_DEEP
        share = _FIRST_SHARE if elapsed_ns < AT_FIRST_NS else DEEP_SHARE
        return before < FEWEST_DEEP or self.deep_ns < share * elapsed_ns

    def took(self, paused_ns: int, lasted_ns: int) -> None:
        """Note the length of a window with providers armed, and the time to arm and disarm."""
        self.deep_ns += paused_ns + int(_RECORDING * lasted_ns)

    @staticmethod
    def length_ns(records: Records, elapsed_ns: int) -> int:
        """Return the length of a window, by the time since the program began."""
        longest = LONGEST_DEEP_NS if records >= Records.SYSTEM else LONGEST_NS
        return min(elapsed_ns // _SHARE, longest)

    @staticmethod
    def units(records: Records, units: int) -> int:
        """Return the length of a window among ranks, in passes or calls, by the number so far."""
        return 1 if records >= Records.SYSTEM else min(max(units // _SHARE, 1), 32)

    def anew(self) -> Lottery:
        """Return a lottery that draws the same windows from the first one on."""
        return Lottery(
            self._seed, layers=self._layers, operators=self._operators, system=self._system
        )
