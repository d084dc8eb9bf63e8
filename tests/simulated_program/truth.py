"""The truth of a simulated program: what happened, and how long it took without xsp."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from simulated_program.script import What


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        what: `CALL`, `LAYER`, `BACKWARD`, `OPTIMIZER`, `PART`, `OPEN` (a region) or `STEP`.
        name: Its name: of a call that of the model, of a layer that which xsp can know.
        shape: Shape of the input of a call.
        took_ns: How long it took without xsp.
        costs_ns: By how much hooks made it longer; what they noted is not counted.
        hooks: How many hooks of calls, passes, steps, parts and regions ran in it.
        idle: How many modules' calls in it were not logged, though their hooks ran.
        begin_ns: When it began on the simulated clock.
        end_ns: When it ended.
        thread: Number of its thread.
        regions: Names of the regions around it.
        inside: Whether it lies in a call, a pass, or a training step.
        within: What the innermost of those is.
        logged: Whether hooks were in place when it began.
        raised: Whether it ended by an exception.
    """

    what: What
    name: str
    shape: str
    took_ns: int
    costs_ns: int
    hooks: int
    idle: int
    begin_ns: int
    end_ns: int
    thread: int
    regions: frozenset[str]
    inside: bool
    within: What | None
    logged: bool
    raised: bool = False


@dataclass(slots=True)
class Truth:
    """All that happened in a program, and how long the program took without xsp."""

    events: list[Event] = field(default_factory=list)
    took_ns: int = 0
    hooks: int = 0
    idle: int = 0

    def by(self, key: Callable[[Event], Hashable]) -> dict[Hashable, list[Event]]:
        """Return the events by a key; those whose key is None are left out."""
        result: defaultdict[Hashable, list[Event]] = defaultdict(list)
        for event in self.events:
            found = key(event)
            if found is not None:
                result[found].append(event)
        return dict(result)
