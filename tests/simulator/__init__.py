"""Simulates a machine with moods, whose runs have a known truth.

The plan, the session, the interpretation and the merging are xsp's own; the clock, the provider
and the model are simulated. `mood` says how fast the machine is at what time, `tree` what is
evaluated, `cost` what recording costs, `machine` evaluates, `measurement` measures, `score`
compares what xsp says with the truth, and `condition` does so many times.
"""

from simulator.condition import Condition, known_tree, known_truth
from simulator.cost import COSTS, Cost, cost_of
from simulator.machine import Machine
from simulator.measurement import Measurement, measure, measure_processes
from simulator.mood import MOODS, Course, Mood
from simulator.score import GROUPS, Group, Score, Scores, true_latencies
from simulator.tree import TREES, Tree, random_tree

__all__ = [
    "COSTS",
    "GROUPS",
    "MOODS",
    "TREES",
    "Condition",
    "Cost",
    "Course",
    "Group",
    "Machine",
    "Measurement",
    "Mood",
    "Score",
    "Scores",
    "Tree",
    "cost_of",
    "known_tree",
    "known_truth",
    "measure",
    "measure_processes",
    "random_tree",
    "true_latencies",
]
