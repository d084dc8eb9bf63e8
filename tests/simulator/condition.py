"""Scores repeated measurements under one condition: costs, mood, tree and runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from simulator.cost import cost_of
from simulator.machine import Machine
from simulator.measurement import PASSES, Measurement, measure, measure_processes
from simulator.mood import MOODS
from simulator.score import Score, Scores, true_latencies
from simulator.tree import TREES, Tree
from xsp.level import parse_levels
from xsp.record.session import Settings

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Condition:
    """A model and settings that are measured again and again.

    Attributes:
        costs: One of `COSTS`.
        mood: One of `MOODS`.
        tree: One of `TREES`.
        runs: Steps on each pass; None: as many as the default plan wants.
        ten_times: Whether one step of each measurement takes ten times as long.
        interpreted: Whether xsp interprets the records (`measure`).
        precision: Half width of the model's interval that ends the default plan.
    """

    costs: str
    mood: str
    tree: str
    runs: int | None = None
    ten_times: bool = False
    interpreted: bool = False
    precision: float = 0.01

    def scores(self, seeds: range) -> Scores:
        """Return the scores of one measurement per seed."""
        scores = tuple(self.score(seed) for seed in seeds)
        return Scores(known_tree(self.tree), known_truth(self.tree, self.mood), scores)

    def score(self, seed: int) -> Score:
        """Measure once, and return the score."""
        truth, mood = known_truth(self.tree, self.mood), MOODS[self.mood]
        machine = self._machine(seed)
        return Score.of(machine, self._measure(machine), truth, moving=mood.moving)

    def measurement(self, seed: int) -> Measurement:
        """Measure once."""
        return self._measure(self._machine(seed))

    def _machine(self, seed: int) -> Machine:
        tree = known_tree(self.tree)
        machine = Machine(tree, cost_of(tree, self.costs), MOODS[self.mood], seed)
        if self.ten_times:
            # The first step of a pass warms up, and the next ones count.
            pass_ = PASSES[machine.random.integers(1, len(PASSES))]
            machine.ten_times = (pass_.kinds, int(machine.random.integers(1, 1 + (self.runs or 3))))
        return machine

    def _measure(self, machine: Machine) -> Measurement:
        settings = Settings(parse_levels(2), runs=self.runs, precision=self.precision)
        spread = MOODS[self.mood].processes
        if not spread:
            return measure(machine, settings, interpreted=self.interpreted)
        speeds = np.exp(spread * machine.random.standard_normal(len(PASSES) - 1))
        return measure_processes(machine, settings, speeds.tolist(), interpreted=self.interpreted)


@cache
def known_tree(name: str) -> Tree:
    """Return one of `TREES`."""
    return TREES[name]()


@cache
def known_truth(tree: str, mood: str) -> Floats:
    """Return the true latencies of one of `TREES` in one of `MOODS`."""
    return true_latencies(known_tree(tree), MOODS[mood])
