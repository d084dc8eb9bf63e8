"""Reading: zoo files and shorthands as written on a command line in, the zoo with its tasks out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xsp.text import suggest
from xsp.zoo.definition.document import DefinitionError
from xsp.zoo.definition.entry import read_entries, read_settings
from xsp.zoo.definition.expansion import Model, models_of, tasks_of
from xsp.zoo.task import Task


@dataclass(frozen=True, slots=True)
class Zoo:
    """The models to measure, and how.

    Attributes:
        name: Name of the zoo.
        tasks: What is measured, in the order of the zoo.
    """

    name: str
    tasks: tuple[Task, ...]


def read_zoo(
    *texts: str, overrides: Mapping[str, Any] | None = None, only: Sequence[str] = ()
) -> Zoo:
    """Return the zoo that files and shorthands describe together.

    Args:
        texts: A TOML file's path or a shorthand each: `torchvision`, `timm:resnet*,vit_*`,
            `transformers:bert,gpt2`, `keras`, `onnx:DIR`, `file.py:make_models`.
        overrides: Values by key of the schema that stand in place of those in the files.
        only: Patterns, of which a model's name or target has to match one; none: every model.

    Raises:
        DefinitionError: A file or shorthand says something that is not possible, or a library that
            has to say which models there are is missing; the message names file and line.
        OSError: A file cannot be read.
    """
    said = read_settings(overrides or {})
    names, entries = [], []
    for text in texts:
        name, found = read_entries(text)
        names.append(name)
        entries += found
    models = _chosen(models_of(entries), only)
    zoo = ", ".join(names)
    return Zoo(zoo, tuple(task for model in models for task in tasks_of(model, said, zoo)))


def _chosen(models: list[Model], only: Sequence[str]) -> list[Model]:
    for pattern in only:
        if not any(model.matches(pattern) for model in models):
            close = suggest(pattern, (model.name for model in models))
            raise DefinitionError(f"the zoo has no model that {pattern!r} matches{close}")
    return [model for model in models if not only or any(map(model.matches, only))]
