"""Definitions: reads zoo files and shorthands, and makes the tasks that they stand for.

The structs below are the schema of a zoo file: docs/zoo.md has the same as tables, and a test
compares the two. What is wrong is named by its path, as in `zoo.toml: defaults.batch: …`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from xsp.answer.zoo.setting import combinations, frameworks, numbers, precisions, ways_to_run
from xsp.answer.zoo.task import Limits, Point, Task
from xsp.errors import UnknownTargetError
from xsp.level import parse_levels
from xsp.measuring.target import SOURCES, Found, Spec, Value, find
from xsp.record.session import Settings
from xsp.text import suggest

_BUILT = ("torchvision", "timm", "transformers", "keras")  # models that have any batch
_PATHS = ("onnx", "tf-saved-model")  # sources after which a path stands, in which commas are commas
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?|)B?\s*")

Count = Annotated[int, Meta(ge=1)]
Counts = Count | str | list[Count]
Positive = Annotated[float, Meta(gt=0)]
Percentage = Annotated[float, Meta(ge=0, le=100)]
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | Annotated[list[Text], Meta(min_length=1)]
Scalar = bool | int | float | str


class DefinitionError(ValueError):
    """A zoo file or a shorthand says something that is not possible."""


class ZooKeys(Struct, forbid_unknown_fields=True):
    """The table [zoo]."""

    name: Text | None = None


class SettingKeys(Struct, forbid_unknown_fields=True):
    """The table [defaults], whose keys may stand in a [[model]] for its models as well."""

    batch: Counts | None = None
    levels: Any = None
    budget: Positive | None = None
    runs: Count | None = None
    threads: Counts | None = None
    precision: Texts | None = None
    compile: bool | Text | list[bool] | None = None
    device: Texts | None = None
    framework: Texts | None = None
    train: bool | None = None
    time_limit: Positive | None = None
    memory_limit: Count | str | None = None
    check: bool | None = None
    set: dict[str, Scalar | list[Scalar]] | None = None

    def __post_init__(self) -> None:
        """Refuse values that mean nothing.

        Raises:
            ValueError: A value means nothing; msgspec names the table.
        """
        said_by(self)


class ModelKeys(SettingKeys):
    """A table [[model]]: a model, or a group of models with the same settings."""

    target: Text | None = None
    targets: Texts | None = None
    exclude: Texts | None = None
    name: Text | None = None
    family: Text | None = None
    accuracy_pct: Percentage | dict[str, Percentage] | None = None
    facts: dict[str, Scalar] | None = None

    def __post_init__(self) -> None:
        """Refuse a model without a target.

        Raises:
            ValueError: It has none, or a value means nothing.
        """
        said_by(self)
        if (self.target is None) == (self.targets is None):
            both = "and here is neither" if self.target is None else "not both"
            raise ValueError(f"a model has a target or a list of targets, {both}")


class Document(Struct, forbid_unknown_fields=True):
    """A zoo file."""

    zoo: ZooKeys = msgspec.field(default_factory=ZooKeys)
    defaults: SettingKeys = msgspec.field(default_factory=SettingKeys)
    model: list[ModelKeys] = msgspec.field(default_factory=list)


def _list(value: Any) -> tuple[Any, ...]:
    """Return one value, or the values of a list, each once."""
    return tuple(dict.fromkeys(value if isinstance(value, (list, tuple)) else [value]))


def _counts(value: Any) -> tuple[int, ...]:
    return numbers(value) if isinstance(value, str) else tuple(sorted(_list(value)))


def _memory(value: int | str) -> int:
    """Return bytes, of a text such as `8 GiB` or a number of bytes.

    >>> _memory("8 GiB"), _memory("500MB"), _memory(1024)
    (8589934592, 500000000, 1024)
    """
    found = _SIZE.fullmatch(str(value))
    size = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not size:
        raise ValueError(f'{value!r} is no size of memory: write "8 GiB", or "500 MB"')
    return size


_MEANING: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("batch", "threads"), _counts),
    "levels": parse_levels,
    "precision": lambda said: precisions(",".join(_list(said))),
    "framework": lambda said: frameworks(",".join(_list(said))),
    "compile": lambda said: ways_to_run(said) if isinstance(said, str) else _list(said),
    **dict.fromkeys(("device", "targets", "exclude"), _list),
    "memory_limit": _memory,
    "set": lambda said: {name: _list(values) for name, values in said.items()},
}


def said_by(keys: SettingKeys) -> dict[str, Any]:
    """Return the values that a table gives, by key, in the form in which they are used.

    Raises:
        ValueError: A value means nothing.
    """
    said = {}
    for name in keys.__struct_fields__:
        if (value := getattr(keys, name)) is not None:
            try:
                said[name] = _MEANING.get(name, lambda given: given)(value)
            except (ValueError, TypeError) as error:
                words = str(error).removeprefix("levels= ")
                raise ValueError(f"{name}: {words}") from error
    return said


@dataclass(frozen=True, slots=True)
class Wish:
    """A part of an entry that asks for models: `timm:resnet*` of `timm:resnet*,vit_*`.

    Attributes:
        written: Its text in the file.
        text: The text for `xsp.measuring.target.find`.
    """

    written: str
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A group of models with the same settings: a [[model]] of a file, or a shorthand.

    Attributes:
        place: Where it stands: `zoo.toml: model[0]`, or the shorthand.
        wishes: Which models.
        said: Values by key, settings of the defaults too.
    """

    place: str
    wishes: tuple[Wish, ...]
    said: Mapping[str, Any]

    def error(self, message: str, key: str = "") -> DefinitionError:
        """Return the error that says where the entry is wrong."""
        return DefinitionError(f"{self.place}{f'.{key}' * bool(key)}: {message}")


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


@dataclass(frozen=True, slots=True)
class Zoo:
    """The models to measure, and how.

    Attributes:
        name: Name of the zoo.
        tasks: The work, in the order of the zoo.
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
        overrides: Values by key of `SettingKeys` that stand in place of those in the files.
        only: Patterns, of which a model's name or target has to match one; none: every model.

    Raises:
        DefinitionError: A file or shorthand says something that is not possible, or a library that
            has to say which models there are is missing; the message names the place.
        OSError: A file cannot be read.
    """
    try:
        said = said_by(msgspec.convert(dict(overrides or {}), SettingKeys))
    except msgspec.ValidationError as error:
        key, _, message = _told(error).partition(":")
        raise DefinitionError(f"--{key.replace('_', '-')}:{message}") from error
    read = [read_entries(text) for text in texts]
    models = _models_of([entry for _, entries in read for entry in entries])
    for pattern in only:
        if not any(model.matches(pattern) for model in models):
            close = suggest(pattern, (model.name for model in models))
            raise DefinitionError(f"the zoo has no model that {pattern!r} matches{close}")
    chosen = [model for model in models if not only or any(map(model.matches, only))]
    zoo = ", ".join(name for name, _ in read)
    return Zoo(zoo, tuple(task for model in chosen for task in _tasks_of(model, said, zoo)))


def template() -> str:
    """Return the text of a zoo file to begin with."""
    return Path(__file__).with_name("template.toml").read_text(encoding="utf-8")


def read_entries(text: str) -> tuple[str, list[Entry]]:
    """Return the name and the entries of a zoo file or a shorthand.

    Raises:
        DefinitionError: Something in it is not possible; the message names the place.
        OSError: The file cannot be read.
    """
    path = Path(text)
    if path.suffix != ".toml":
        if path.is_file():
            raise DefinitionError(f"{text} is no zoo: the name of a zoo file ends in .toml")
        return text, [Entry(text, tuple(_wishes(text, Path())), {"target": text})]
    try:
        document = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8-sig")), Document)
    except FileNotFoundError as error:
        raise DefinitionError(
            f"there is no zoo file {path}: xsp zoo init {path} writes one to begin with"
        ) from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"{path} is no TOML file: it is not UTF-8 ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(f"{path} is no TOML file: {error}") from error
    except msgspec.ValidationError as error:
        raise DefinitionError(f"{path}: {_told(error)}") from error
    if not document.model:
        raise DefinitionError(f'{path} has no model: add [[model]] with target = "torchvision"')
    entries = []
    for number, model in enumerate(document.model):
        said = said_by(model)
        texts = said.get("targets") or (said["target"],)
        wishes = tuple(wish for each in texts for wish in _wishes(each, path.parent))
        entries.append(Entry(f"{path}: model[{number}]", wishes, said_by(document.defaults) | said))
    return document.zoo.name or path.stem, entries


def _told(error: msgspec.ValidationError) -> str:
    """Return the place and the words of an error: `defaults.batch: expected int >= 1`."""
    message, _, place = str(error).replace(" | null", "").partition(" - at `")
    place = place.rstrip("`").removeprefix("$").removeprefix(".")
    key, colon, words = message.partition(": ")
    if colon and key in ModelKeys.__struct_fields__:  # of `said_by`
        place, message = f"{place}.{key}".removeprefix("."), words
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", message):
        tables = {"": Document, "zoo": ZooKeys, "defaults": SettingKeys}
        known = tables.get(place, ModelKeys).__struct_fields__
        close = suggest(unknown[1], known)
        message = f"there is no key {unknown[1]!r} here{close}: {', '.join(known)}"
    elif place == "model":
        message += ": write [[model]]"
    return f"{place}: {message}" if place else message


def _wishes(text: str, folder: Path) -> Iterator[Wish]:
    """Yield the parts of a list after a source, paths from the folder on."""
    source, _, names = text.partition(":")
    if source in SOURCES and source not in (*_PATHS, "jax"):
        for name in names.split(",") if names else [""]:
            yield Wish(text, f"{source}:{name.strip()}" if name.strip() else source)
    elif source in _PATHS:
        yield Wish(text, f"{source}:{os.path.abspath(folder / names)}")
    elif any(Spec(text).in_file):
        before = "jax:" if source == "jax" else ""
        yield Wish(text, before + os.path.abspath(folder / text.removeprefix(before)))
    else:
        yield Wish(text, text)


def _models_of(entries: Sequence[Entry]) -> list[Model]:
    """Return the models that entries ask for, in their order.

    Raises:
        DefinitionError: There is no such model, or one stands twice.
    """
    texts = list(dict.fromkeys(wish.text for entry in entries for wish in entry.wishes))
    found = dict(zip(texts, find(texts), strict=True))
    known: dict[str, Model] = {}
    for entry in entries:
        for model in _of_entry(entry, found):
            before = known.setdefault(model.name, model)
            if before is not model:
                raise model.entry.error(
                    f"the model {model.name} is here, and in {before.entry.place} as well: leave "
                    "out one of the two (exclude = [...]), or give one of them another name "
                    "(name = ...)"
                )
    return list(known.values())


def _of_entry(entry: Entry, found: Mapping[str, Found]) -> list[Model]:
    targets: dict[str, Wish] = {}
    for wish in entry.wishes:
        answer = found[wish.text]
        if answer.error is not None:
            written = f"{wish.written!r}: " if len(entry.wishes) > 1 else ""
            raise entry.error(f"{written}{answer.error}")
        for target in answer.targets:
            targets.setdefault(target, wish)
    name = entry.said.get("name")
    models = [Model(name or _name(target), target, entry, wish) for target, wish in targets.items()]
    left = models
    for pattern in entry.said.get("exclude", ()):
        _check_matched(entry, "exclude", pattern, models)
        left = [model for model in left if not model.matches(pattern)]
    if not left:
        raise entry.error("every model is excluded", "exclude")
    accuracy = entry.said.get("accuracy_pct")
    for key, one in (("name", name), ("accuracy_pct", accuracy)):
        if one is not None and not isinstance(one, Mapping) and len(left) > 1:
            raise entry.error(
                f"{key} is of one model, and here are {len(left)}: give it a [[model]] alone", key
            )
    for pattern in accuracy if isinstance(accuracy, Mapping) else ():
        _check_matched(entry, "accuracy_pct", pattern, left)
    return left


def _check_matched(entry: Entry, key: str, pattern: str, models: Iterable[Model]) -> None:
    if not any(model.matches(pattern) for model in models):
        close = suggest(pattern, (Spec(model.target).name for model in models))
        raise entry.error(f"{pattern!r} is none of these models{close}", key)


def _name(target: str) -> str:
    """Return the name of a model that was given none: its target, without folders."""
    spec = Spec(target)
    path, function, made = spec.in_file
    if made or path:
        return made or function
    return target if spec.source in _BUILT else f"{spec.source}:{spec.name}"


def _tasks_of(model: Model, overrides: Mapping[str, Any], zoo: str) -> Iterator[Task]:
    """Yield a task for each combination of a model's settings.

    Raises:
        DefinitionError: No framework that was asked for runs the model.
    """
    said = {**model.entry.said, **overrides}
    levels = said.get("levels") or parse_levels(2)
    plan = Settings(levels, said.get("runs"), said.get("budget", 5.0))
    limits = Limits(said.get("time_limit", Limits().time_s), said.get("memory_limit"))
    facts: dict[str, Value] = {**said.get("facts", {}), "zoo": zoo}
    accuracy = said.get("accuracy_pct")
    if isinstance(accuracy, Mapping):
        accuracy = next((accuracy[name] for name in accuracy if model.matches(name)), None)
    given = {"family": said.get("family"), "accuracy_pct": accuracy}
    facts |= {name: fact for name, fact in given.items() if fact is not None}
    for spec, threads in _variants(model, said):
        batches = said.get("batch", (1,) if spec.source in _BUILT else ()) or (None,)
        points = tuple(Point(replace(spec, batch=batch), threads) for batch in batches)
        yield Task(model.name, points, plan, limits, said.get("check", False), facts)


def _variants(model: Model, said: Mapping[str, Any]) -> Iterator[tuple[Spec, int | None]]:
    """Yield the model with each combination of its settings but the batch."""
    axes = ("device", "framework", "precision", "compile", "threads")
    values = [said.get(axis) or (None,) for axis in axes]
    short = {"seq": "sequence"} if Spec(model.target).source == "transformers" else {}
    further = {short.get(name, name): each for name, each in said.get("set", {}).items()}
    for inputs in combinations(further):
        for device, framework, precision, compiled, threads in product(*values):
            spec = Spec(
                model.target,
                device=device,
                train=said.get("train", False),
                inputs=tuple(inputs.items()),
                precision=precision,
                compiled=compiled,
                framework=framework,
            )
            if framework is not None and spec.source:
                try:
                    _ = spec.runs_on
                except UnknownTargetError as error:
                    words = str(error).replace("--framework", "framework =")
                    raise model.entry.error(words, "framework") from error
            yield spec, threads
