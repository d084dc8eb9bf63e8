from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator import (
    MOODS,
    Course,
    Machine,
    Mood,
    Tree,
    cost_of,
    measure,
    measure_processes,
    random_tree,
)
from simulator.mood import bursts, steady

from xsp.level import Kind, parse_levels
from xsp.record.session import Settings

SETTINGS = Settings(levels=parse_levels(2), runs=12)
SILENT = Mood(steady, jitter=0.0)
TREE = random_tree(50, 0.3e6)


def nested(tree: Tree) -> np.ndarray:
    """Return the sum of the self times inside each span."""
    total = np.array(tree.own_ns)
    for span in range(len(total) - 1, 0, -1):
        total[tree.parent[span]] += total[span]
    return total


def test_work_takes_longer_while_the_machine_is_slow() -> None:
    course = Course(np.array([0.0, 100.0]), np.array([1.0, 2.0]))
    assert course.time_of(np.array([50.0, 100.0, 150.0])).tolist() == [50, 100, 200]
    assert course.work_until(np.array([50.0, 100.0, 200.0])).tolist() == [50, 100, 150]
    assert course.factors_at(np.array([99.0, 100.0])).tolist() == [1, 2]


@pytest.mark.parametrize("length_ns", [60e6, 1e9])
def test_bursts_take_a_tenth_of_the_time(length_ns: float) -> None:
    random = np.random.default_rng(0)
    moments = np.arange(0, 50e9, 7e6)
    slow = [bursts(length_ns)(random).factors_at(moments) > 1.2 for _ in range(60)]
    assert np.mean(slow) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("costs", ["equal", "inside", "none"])
def test_a_measurement_without_noise_finds_the_truth(costs: str) -> None:
    found = measure(Machine(TREE, cost_of(TREE, costs), SILENT), SETTINGS)
    latency = found.merged.spans["latency_ns"].to_numpy()
    assert latency == pytest.approx(nested(TREE), rel=2e-3, abs=20)


def test_a_measurement_costs_what_is_recorded() -> None:
    cost = cost_of(TREE, "inside")
    runs = measure(Machine(TREE, cost, SILENT), SETTINGS).runs
    taken = {run.pass_.name: run.latency_ns for run in runs}
    whole = cost.outside_ns + cost.inside_ns
    layers = np.array([kind is Kind.LAYER for kind in TREE.kind])
    assert taken["bare"] == taken["region"] == pytest.approx(sum(TREE.own_ns), abs=2)
    assert taken["layer"] - taken["bare"] == pytest.approx(whole[layers].sum(), abs=2)
    assert taken["op"] - taken["bare"] == pytest.approx(whole.sum(), abs=2)


@pytest.mark.parametrize(
    ("mood", "costs"),
    [("calm 3 %", "equal"), ("bursts 60 ms", "equal"), ("spikes", "equal"), ("calm 1 %", "inside")],
)
def test_runs_made_directly_are_those_that_xsp_interprets(mood: str, costs: str) -> None:
    interpreted, direct = (
        measure(machine(mood, costs), SETTINGS, interpreted=interpreted)
        for interpreted in (True, False)
    )
    by_begin = [sorted(found.runs, key=lambda run: run.began_ns) for found in (interpreted, direct)]
    for one, other in zip(*by_begin, strict=True):
        assert replace(one, rows=None) == replace(other, rows=None)
        if one.rows is not None and other.rows is not None:
            shared = other.rows.columns
            assert one.rows.select(shared).equals(other.rows)
    columns = ["path", "latency_ns", "latency_low_ns", "latency_high_ns", "runs"]
    assert interpreted.merged.spans[columns].equals(direct.merged.spans[columns])


def machine(mood: str, costs: str) -> Machine:
    return Machine(TREE, cost_of(TREE, costs), MOODS[mood], seed=5)


def test_processes_take_turns_and_each_has_its_factor() -> None:
    speeds = [1.0, 1.1, 0.9]
    found = measure_processes(Machine(TREE, cost_of(TREE, "none"), SILENT), SETTINGS, speeds)
    whole = sum(TREE.own_ns)
    taken = {(run.process, run.pass_.name): run.latency_ns / whole for run in found.runs}
    assert taken == pytest.approx(
        {
            **{(process, "bare"): speed for process, speed in enumerate(speeds)},
            **{(0, "region"): 1.0, (1, "layer"): 1.1, (2, "op"): 0.9},
        },
        rel=1e-4,
    )
    in_time = sorted(found.runs, key=lambda run: run.began_ns)
    assert len({run.process for run in in_time[: len(in_time) // 3]}) == 3
