"""Expansion: entries in, the tasks of their models out, a model once.

A model has a task for each combination of its settings, and a task a point for each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from xsp.errors import UnknownTargetError
from xsp.session import Settings
from xsp.sweep import Point
from xsp.target import Found, Spec, Value, find
from xsp.text import suggest
from xsp.zoo.definition.document import DefinitionError
from xsp.zoo.definition.entry import Entry, Wish
from xsp.zoo.definition.value import levels
from xsp.zoo.task import Limits, Task

_LEVELS = 2
_BUDGET_S = 5.0
_BUILT = ("torchvision", "timm", "transformers", "keras")  # models that have any batch


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a zoo.

    Attributes:
        name: Its name, unique in the zoo.
        target: Its target.
        entry: The entry that asks for it.
        wish: Which part of that.
    """

    name: str
    target: str
    entry: Entry
    wish: Wish

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern is of the model's name, its target, or its name there."""
        names = (self.name, self.target, Spec(self.target).name)
        return any(fnmatchcase(name, pattern) for name in names)


def models_of(entries: Sequence[Entry]) -> list[Model]:
    """Return the models that entries ask for, in their order.

    Raises:
        DefinitionError: There is no such model, or one stands twice.
    """
    texts = list(dict.fromkeys(wish.text for entry in entries for wish in entry.wishes))
    found = dict(zip(texts, find(texts), strict=True))
    models = [model for entry in entries for model in _of_entry(entry, found)]
    _check_once(models)
    return models


def tasks_of(model: Model, overrides: Mapping[str, Any], zoo: str) -> Iterator[Task]:
    """Yield a task for each combination of a model's settings.

    Args:
        model: The model.
        overrides: Settings that stand in place of those of its entry.
        zoo: Name of the zoo.

    Raises:
        DefinitionError: No framework that was asked for runs the model, or a fact has no model.
    """
    said = {**model.entry.said, **overrides}
    plan = Settings(
        said.get("levels") or levels(_LEVELS), said.get("runs"), said.get("budget", _BUDGET_S)
    )
    limits = _limits(said)
    for spec, threads in _variants(model, said):
        batches = said.get("batch", (1,) if spec.source in _BUILT else ()) or (None,)
        points = tuple(Point(_with_batch(spec, batch), threads) for batch in batches)
        yield Task(
            model.name,
            points,
            plan,
            limits,
            said.get("check", False),
            {**_facts(model), "zoo": zoo},
        )


def _limits(said: Mapping[str, Any]) -> Limits:
    given = {"time_s": said.get("time_limit"), "memory_bytes": said.get("memory_limit")}
    return Limits(**{name: value for name, value in given.items() if value is not None})


def _of_entry(entry: Entry, found: Mapping[str, Found]) -> list[Model]:
    targets: dict[str, Wish] = {}
    for wish in entry.wishes:
        answer = found[wish.text]
        if answer.error is not None:
            raise entry.error(entry.targets_key, answer.error, wish.written)
        for target in answer.targets:
            targets.setdefault(target, wish)
    name = entry.said.get("name")
    models = [Model(name or _name(target), target, entry, wish) for target, wish in targets.items()]
    left = _without(entry, models)
    for key in ("name", "accuracy_pct"):
        one = entry.said.get(key)
        if one is not None and not isinstance(one, Mapping) and len(left) > 1:
            raise entry.error(
                key, f"{key} is of one model, and here are {len(left)}: give it a [[model]] alone"
            )
    _check_accuracies(entry, left)
    return left


def _name(target: str) -> str:
    """Return the name of a model that was given none: its target, without folders."""
    spec = Spec(target)
    path, function, made = spec.in_file
    if made or path:
        return made or function
    return target if spec.source in _BUILT else f"{spec.source}:{spec.name}"


def _without(entry: Entry, models: list[Model]) -> list[Model]:
    """Return the models that the entry does not exclude.

    Raises:
        DefinitionError: A pattern excludes none, or all are excluded.
    """
    left = models
    for pattern in entry.said.get("exclude", ()):
        if not any(model.matches(pattern) for model in models):
            close = suggest(pattern, (Spec(model.target).name for model in models))
            raise entry.error("exclude", f"{pattern!r} excludes none of these{close}", pattern)
        left = [model for model in left if not model.matches(pattern)]
    if not left:
        raise entry.error("exclude", "every model is excluded")
    return left


def _check_accuracies(entry: Entry, models: Sequence[Model]) -> None:
    accuracies = entry.said.get("accuracy_pct")
    if not isinstance(accuracies, Mapping):
        return
    for name in accuracies:
        if not any(model.matches(name) for model in models):
            close = suggest(name, (Spec(model.target).name for model in models))
            path = (*entry.path, "accuracy_pct", name)
            raise entry.document.error(path, f"{name!r} is none of these models{close}")


def _check_once(models: Iterable[Model]) -> None:
    known: dict[str, Model] = {}
    for model in models:
        before = known.setdefault(model.name, model)
        if before is not model:
            here, there = (one.entry.place(one.wish.written) for one in (model, before))
            raise DefinitionError(
                f"{here}: the model {model.name} is here, and in {there} as well: leave out one of "
                "the two (exclude = [...]), or give one of them another name (name = ...)"
            )


def _variants(model: Model, said: Mapping[str, Any]) -> Iterator[tuple[Spec, int | None]]:
    """Yield the model with each combination of its settings but the batch."""
    axes = ("device", "framework", "precision", "compile", "threads")
    values = [said.get(axis) or (None,) for axis in axes]
    train = said.get("train", False)
    for inputs in _inputs(model, said):
        for device, framework, precision, compiled, threads in product(*values):
            spec = Spec(
                model.target,
                device=device,
                train=train,
                inputs=inputs,
                precision=precision,
                compiled=compiled,
                framework=framework,
            )
            _check_framework(model, spec)
            yield spec, threads


def _check_framework(model: Model, spec: Spec) -> None:
    if spec.framework is None or not spec.source:
        return
    try:
        _ = spec.runs_on
    except UnknownTargetError as error:
        said = str(error).replace("--framework", "framework =")
        raise model.entry.error("framework", said) from error


def _inputs(model: Model, said: Mapping[str, Any]) -> Iterator[tuple[tuple[str, Value], ...]]:
    settings = said.get("set", {})
    short = {"seq": "sequence"} if Spec(model.target).source == "transformers" else {}
    names = [short.get(name, name) for name in settings]
    for values in product(*settings.values()):
        yield tuple(zip(names, values, strict=True))


def _with_batch(spec: Spec, batch: int | None) -> Spec:
    return replace(spec, batch=batch)


def _facts(model: Model) -> dict[str, Value]:
    said = model.entry.said
    facts: dict[str, Value] = dict(said.get("facts", {}))
    if "family" in said:
        facts["family"] = said["family"]
    accuracy = said.get("accuracy_pct")
    if isinstance(accuracy, Mapping):
        accuracy = next((accuracy[name] for name in accuracy if model.matches(name)), None)
    return facts if accuracy is None else {**facts, "accuracy_pct": accuracy}
