"""A machine: how fast it is from moment to moment, and what xsp's hooks cost on it."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass

import hypothesis.strategies as st

from xsp.reading.program import cost

_MOOD_NS = (2_000_000, 60_000_000)  # a mood lasts as long


@dataclass(frozen=True, slots=True)
class Machine:
    """Effects of a machine on a program, and of hooks on its clock; times in ns.

    Attributes:
        seed: Of everything that happens by chance.
        layer_ns: What recording a layer costs, on average; `operator_ns` and so on likewise.
        operator_ns: Of an operator; single kinds of operator cost 0.7 to 1.4 times as much.
        call_ns: Of an outermost call, besides what its hook notes.
        pass_ns: Of a backward pass.
        step_ns: Of an optimizer's step.
        idle_ns: Of a module's call whose layers are not recorded.
        noted_ns: What the hook of a call notes of itself.
        jitter: By which part of it a cost varies.
        cold: How many times as much the first call in a window costs.
        moods: By which part of it the machine is slower at times; 0: never.
    """

    seed: int = 0
    layer_ns: float = cost.LAYER_NS
    operator_ns: float = cost.OPERATOR_NS
    call_ns: float = cost.CALL_NS
    pass_ns: float = cost.PASS_NS
    step_ns: float = cost.OPTIMIZER_NS
    idle_ns: float = cost.IDLE_NS
    noted_ns: float = 4000.0
    jitter: float = 0.0
    cold: float = 1.0
    moods: float = 0.0


QUIET = Machine()


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw machines: costs are as far from what xsp expects as it says that they may be."""

    def near(expected: float) -> float:
        return expected * draw(st.floats(0.65, 1.35))

    return Machine(
        seed=draw(st.integers(0, 2**16)),
        layer_ns=near(cost.LAYER_NS),
        operator_ns=near(cost.OPERATOR_NS),
        call_ns=near(cost.CALL_NS),
        pass_ns=near(cost.PASS_NS),
        step_ns=near(cost.OPTIMIZER_NS),
        idle_ns=near(cost.IDLE_NS),
        noted_ns=draw(st.floats(1000, 12_000)),
        jitter=draw(st.sampled_from([0.0, 0.3])),
        cold=draw(st.sampled_from([1.0, 1.25])),
        moods=draw(st.sampled_from([0.0, 0.1, 0.6])),
    )


class Speed:
    """Time in ns that one ns of work takes, at each moment of a run."""

    def __init__(self, moods: float, chance: random.Random) -> None:
        self._moods, self._chance = moods, chance
        self._ends, self._factors = [0], [1.0]

    def at(self, time_ns: int) -> float:
        """Return how long one ns of work takes at a moment after the run began."""
        while time_ns >= self._ends[-1]:
            self._ends.append(self._ends[-1] + self._chance.randint(*_MOOD_NS))
            self._factors.append(1.0 + self._moods * self._chance.random() ** 2)
        return self._factors[bisect_right(self._ends, time_ns)]
