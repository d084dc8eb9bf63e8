"""Tasks: a model at one combination of settings, its batches, and the facts that results rest on.

Results that rest on the same facts (target, plan, versions, machine) need not be measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from xsp.measuring.target import FRAMEWORKS, SOURCES, Spec, Value
from xsp.record.session import Settings, describe_environment

# Of the packages whose versions are told these take no part in what is timed.
_BESIDE = ("click", "rich", "psutil", "polars")
# Packages of each framework; those of frameworks that do not run a target are not told.
_OF_FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow",),
    "onnxruntime": ("onnxruntime", "onnx"),
    "jax": ("jax", "jaxlib", "flax", "equinox"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A target with one value of each setting.

    Attributes:
        spec: The target with its settings.
        threads: Threads of the framework and of its libraries; None: as they choose.
    """

    spec: Spec
    threads: int | None = None

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that were set or are known, as in the metadata of the point's trace."""
        settings = self.spec.settings
        return settings if self.threads is None else {"threads": self.threads, **settings}

    @property
    def key(self) -> str:
        """The settings as one text, the same for the same settings."""
        return json.dumps(self.settings, sort_keys=True)

    @property
    def common(self) -> str:
        """The settings without the batch, in words; empty where none was set."""
        spec = self.spec
        asked: dict[str, Value | None] = {"threads": self.threads, **dict(spec.inputs)}
        asked |= {"framework": spec.framework, "precision": spec.precision, "device": spec.device}
        words = [f"{name} {value}" for name, value in asked.items() if value is not None]
        if spec.compiled is not None:
            words.append("compiled" if spec.compiled else "eager")
        return ", ".join([*words, "training"] if spec.train else words)

    def __str__(self) -> str:
        """Return the settings in words: `batch 8, threads 2, compiled`."""
        batch = [] if self.spec.batch is None else [f"batch {self.spec.batch}"]
        return ", ".join([*batch, self.common] if self.common else batch) or "as it is"


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a measurement may use.

    Attributes:
        time_s: Seconds that a measurement may take, loading the model included.
        memory_bytes: Memory that the process and those that it starts may have resident
            together; None: as much as the machine has.
    """

    time_s: float = 600.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one process: a model at one combination of settings, batch by batch.

    Attributes:
        model: Name of the model, unique in the zoo.
        points: Target and settings of each measurement: they differ in their batch alone, which
            ascends.
        plan: How each is measured.
        limits: What each may use.
        check: Whether to verify that two calls of the model give the same output.
        facts: What the zoo says of the model, which becomes columns of the results: `accuracy_pct`,
            `family`, its own name `zoo`, and whatever else was given.
        doubling: Whether larger batches are left out once doubling the batch is not worth it.
    """

    model: str
    points: tuple[Point, ...]
    plan: Settings = field(default_factory=Settings)
    limits: Limits = field(default_factory=Limits)
    check: bool = False
    facts: Mapping[str, Value] = field(default_factory=dict)
    doubling: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the task in the form that JSON can hold."""
        return {
            "model": self.model,
            "points": [{"spec": p.spec.to_json(), "threads": p.threads} for p in self.points],
            "plan": self.plan.to_json(),
            "limits": asdict(self.limits),
            "check": self.check,
            "facts": dict(self.facts),
            "doubling": self.doubling,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Return the task that `to_json` wrote."""
        points = (Point(Spec.from_json(p["spec"]), p["threads"]) for p in data["points"])
        made = {"points": tuple(points), "plan": Settings.from_json(data["plan"])}
        return cls(**{**data, **made, "limits": Limits(**data["limits"])})


def basis_of(
    spec: Spec, plan: Settings, machine: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the facts that results rest on beside their settings, by name.

    Args:
        spec: The target.
        plan: How each point is measured.
        machine: Facts of the machine that measures, from `machine_facts`; None: this machine.
    """
    facts = {"target": spec.target}
    if spec.file is not None and spec.file.is_file():
        with spec.file.open("rb") as file:
            facts["file"] = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    facts["levels"] = ", ".join(sorted(level.label for level in plan.levels))
    facts["runs"] = str(plan.runs or "until precise")
    facts["budget"] = f"{plan.budget_s:g} s"
    # The packages that take no part in running a target: of a function's, nobody knows.
    if not spec.source:
        beside: frozenset[str] = frozenset()
    else:
        used = {spec.runs_on}
        if spec.runs_on == "onnxruntime":
            used |= set(FRAMEWORKS[spec.source])  # PyTorch exports its models for that
        others = {
            name for key, names in _OF_FRAMEWORKS.items() if key not in used for name in names
        }
        sources = {name for name in SOURCES if name not in _OF_FRAMEWORKS}
        beside = frozenset(others) | (sources - {spec.source, *used})
    software = machine_facts() if machine is None else machine
    return facts | {name: fact for name, fact in software.items() if name not in beside}


def machine_facts() -> dict[str, str]:
    """Return the facts of this machine and its software that results rest on."""
    environment = describe_environment()
    facts = {"python": str(environment["python"])}
    versions, threads = environment["versions"], environment["threads"]
    facts |= {name: version for name, version in versions.items() if name not in _BESIDE}
    facts |= {name: str(value) for name, value in threads.items() if name != "operators"}
    facts |= environment["choices"]
    for name in ("host_id", "cpu", "usable_cores"):
        facts[name.replace("_", " ")] = str(environment[name])
    gpus = enumerate(environment["gpus"])
    return facts | {f"GPU {number}": " ".join(gpu.values()) for number, gpu in gpus}


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences between two bases, in words.

    >>> changes({"torch": "2.8", "cpu": "A"}, {"torch": "2.9", "cpu": "A"})
    ['torch was 2.8 and is 2.9']
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [
        f"{name} was {before.get(name, 'missing')} and is {now.get(name, 'missing')}"
        for name in names
    ]


def basis_text(basis: Mapping[str, str]) -> str:
    """Return a basis as one text, the same for the same facts."""
    return json.dumps(dict(basis), sort_keys=True)


def machine_of(basis: Mapping[str, str]) -> str | None:
    """Return the short id of the machine that results rest on; None where it is not known.

    >>> machine_of({"host id": "0123456789abcdef"})
    '01234567'
    """
    known = basis.get("host id")
    return known[:8] if known else None  # 8 digits tell thousands of machines apart
