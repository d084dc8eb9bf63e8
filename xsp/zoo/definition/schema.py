"""The schema of zoo files: the keys of each table, what they mean, and how they are read.

docs/zoo.md has the same as tables; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xsp.zoo.definition import value


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table.

    Attributes:
        read: Returns what a value means; raises `ValueError` for what it cannot be.
        meaning: What it says, for people.
    """

    read: Callable[[Any], Any]
    meaning: str


ZOO: Mapping[str, Key] = {
    "name": Key(value.text, "Name of the zoo. Default: that of the file."),
}

# What stands in [defaults], and in a [[model]] for its models.
SETTINGS: Mapping[str, Key] = {
    "batch": Key(value.counts, 'Batch sizes: 8, [1, 8], or "1..64" for doublings.'),
    "levels": Key(value.levels, "How deep the stack is measured."),
    "budget": Key(value.positive, "Seconds of measuring each point; loading comes on top."),
    "runs": Key(value.count, "Evaluations on each rung, in place of as many as it takes."),
    "threads": Key(value.counts, "Threads of the framework and its libraries."),
    "precision": Key(value.precisions, "Element types of weights and inputs."),
    "compile": Key(value.ways_to_run, "Whether models are compiled."),
    "device": Key(value.texts, "Where models run."),
    "framework": Key(value.frameworks, "What runs a model that several can run."),
    "train": Key(value.boolean, "Whether an evaluation is a training step."),
    "time_limit": Key(value.positive, "Seconds a point may take, loading included."),
    "memory_limit": Key(value.memory, "Memory that a model's process may have resident."),
    "check": Key(value.boolean, "Whether to verify that two calls give the same output."),
    "set": Key(value.settings, "Further settings by name, one value or a list each."),
}

MODEL: Mapping[str, Key] = {
    "target": Key(value.text, "A model, or a shorthand of several."),
    "targets": Key(value.texts, "A list of such."),
    "exclude": Key(value.texts, "Patterns of models to leave out."),
    "name": Key(value.text, "Name of the model. Default: its target."),
    "family": Key(value.text, "Family of the models, by which tables are grouped."),
    "accuracy_pct": Key(value.percentages, "Accuracy, or a table of those of several models."),
    "facts": Key(value.facts, "What else is known of the models, by name."),
}

TABLES: Mapping[str, Mapping[str, Key]] = {
    "zoo": ZOO,
    "defaults": SETTINGS,
    "model": {**MODEL, **SETTINGS},
}
