"""A script: what each thread of a program does, one thing after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from xsp.level import Kind
from xsp.provider import CallFacts, NamedLayer
from xsp.record.program import RegionFacts


class What(Enum):
    """Actions of a program."""

    RUN = auto()  # works for `ns`
    OPERATOR = auto()  # calls the operator `name`, which works for `ns`
    CALL = auto()  # calls a model: facts of `number`
    LAYER = auto()  # calls the module whose id is `number`
    BACKWARD = auto()  # begins a backward pass; number 1: that returns gradients
    OPTIMIZER = auto()  # begins an optimizer's step; `number` of its name
    PART = auto()  # begins another part; `number` of its name
    END = auto()  # ends what began last
    RAISE = auto()  # ends it by an exception; `number` of its name
    OPEN = auto()  # opens the region of `number` in this context
    CLOSE = auto()  # closes it
    CONTEXT = auto()  # goes on with another context, whose innermost region is `number`
    STEP = auto()  # here xsp should see a training step begin, of the model `name`
    STEPPED = auto()  # and here end
    DIE = auto()  # the module whose id is `number` dies
    START = auto()  # starts the thread of `number`
    JOIN = auto()  # waits for all other threads


class Do(NamedTuple):
    """One thing that a thread does."""

    what: What
    number: int = 0
    ns: int = 0
    name: str = ""


@dataclass(slots=True)
class Script:
    """A program.

    Attributes:
        threads: What each thread does, the block's own first.
        facts: Facts of calls, by their number.
        names: Names of parts, optimizers and exceptions, by their number less 1.
        regions: Regions, by their number less 1.
        modules: For each model, by its number, what the ids of its modules mean.
    """

    threads: list[list[Do]] = field(default_factory=lambda: [[]])
    facts: list[CallFacts] = field(default_factory=list)
    names: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    regions: list[RegionFacts] = field(default_factory=list)
    modules: dict[int, dict[int, NamedLayer]] = field(default_factory=dict)

    def name(self, name: str, attributes: Mapping[str, object] | None = None) -> int:
        """Return the number of a name."""
        entry = name, attributes or {}
        if entry not in self.names:
            self.names.append(entry)
        return self.names.index(entry) + 1

    def call(self, facts: CallFacts) -> int:
        """Return the number of the facts of a call."""
        if facts not in self.facts:
            self.facts.append(facts)
        return self.facts.index(facts)

    def region(
        self, name: str, parent: int = 0, *, stated: bool = False, marked: bool = False
    ) -> int:
        """Return the number of a new region."""
        self.regions.append(RegionFacts(name, Kind.REGION, parent, {}, stated, marked))
        return len(self.regions)
