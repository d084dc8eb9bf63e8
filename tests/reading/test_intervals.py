"""Intervals hold as often as they say, on machines of moods, whatever recording costs there."""

from __future__ import annotations

import random

import pytest
from simulated_program import Machine, Plan, simulate, write
from simulated_program.told import read, rows_of, sums, true_key

from xsp.reading.program import cost
from xsp.record.session import describe_environment

FEW, MANY = 25, 120


def held(programs: int, seed: int) -> dict[str, list[bool]]:
    """Return whether the intervals of layers, and of calls, held in some programs.

    Costs that are learned are drawn as xsp expects them; others are as expected.
    """
    result: dict[str, list[bool]] = {"layer": [], "call": []}
    for number in range(programs):
        chance = random.Random(f"{seed} {number}")
        plan = Plan(
            seed=chance.randrange(1 << 16),
            units=chance.choice([5, 30, 60]),
            models=chance.randint(1, 2),
            shapes=chance.randint(1, 2),
            depth=chance.randint(1, 3),
            scale_ns=chance.choice([2_000, 20_000, 100_000]),
            styles=chance.choice([(), ("plain",)]),
        )
        layer_ns, operator_ns = (
            min(max(chance.gauss(prior, cost.PRIOR_SD * prior), 200.0), 3000.0)
            for prior in (cost.LAYER_NS, cost.OPERATOR_NS)
        )
        moods = chance.choice([0.0, 0.1, 0.6])
        machine = Machine(number, layer_ns, operator_ns, jitter=0.3, moods=moods)
        simulated = simulate(write(plan), machine, operators=chance.random() < 0.5)
        told = sums(rows_of(read(simulated.record)))
        for key, events in simulated.truth.by(lambda event: true_key(event, marked=False)).items():
            assert isinstance(key, tuple)
            row = told.get(key)
            if key[0] in result and row is not None and row.reach:
                took = sum(event.took_ns for event in events)
                result[key[0]].append(abs(row.took - took) <= row.reach + 5 * len(events))
    return result


@pytest.fixture(autouse=True)
def quick_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    known = describe_environment()
    monkeypatch.setattr("xsp.reading.program.read.describe_environment", lambda: known)
    monkeypatch.setattr("xsp.reading.program.read.MOST_TRACES", 0)


def test_intervals_hold_in_some_programs() -> None:
    for each in held(FEW, 1).values():
        assert sum(each) >= 0.88 * len(each) > 20


@pytest.mark.slow
def test_intervals_hold_in_many_programs() -> None:
    found = held(MANY, 2)
    assert 0.92 <= sum(found["layer"]) / len(found["layer"]) <= 0.98
    assert sum(found["call"]) / len(found["call"]) >= 0.92
