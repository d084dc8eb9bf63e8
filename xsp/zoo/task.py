"""Tasks: a model of a zoo at one combination of settings in, its name and its key out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xsp.session import Settings
from xsp.sweep import Point
from xsp.target import Spec, Value

_TIME_S = 600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a measurement may use at most.

    Attributes:
        time_s: Seconds that a measurement may take, loading the model included.
        memory_bytes: Memory that the process and those that it starts may have resident
            together; None: as much as the machine has.
    """

    time_s: float = _TIME_S
    memory_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the limits as what JSON can hold."""
        return {"time_s": self.time_s, "memory_bytes": self.memory_bytes}


@dataclass(frozen=True, slots=True)
class Task:
    """What one process measures: a model at one combination of settings, batch by batch.

    Attributes:
        model: Name of the model, unique in the zoo.
        points: Target and settings of each measurement: they differ in their batch alone, which
            ascends.
        plan: How each is measured.
        limits: What each may use.
        check: Whether to verify that two calls of the model give the same output.
        facts: What the zoo says of the model, which becomes columns of the results: `accuracy_pct`,
            `family`, its own name `zoo`, and whatever else was given.
    """

    model: str
    points: tuple[Point, ...]
    plan: Settings = field(default_factory=Settings)
    limits: Limits = field(default_factory=Limits)
    check: bool = False
    facts: Mapping[str, Value] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the task as what JSON can hold."""
        points = [{"spec": point.spec.to_json(), "threads": point.threads} for point in self.points]
        return {
            "model": self.model,
            "points": points,
            "plan": self.plan.to_json(),
            "limits": self.limits.to_json(),
            "check": self.check,
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Return the task that `to_json` wrote."""
        points = tuple(
            Point(Spec.from_json(point["spec"]), point["threads"]) for point in data["points"]
        )
        return cls(
            data["model"],
            points,
            Settings.from_json(data["plan"]),
            Limits(**data["limits"]),
            data["check"],
            data["facts"],
        )
