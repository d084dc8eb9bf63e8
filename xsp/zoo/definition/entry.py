"""Entries: a zoo file or a shorthand in, its groups of models with their settings out, validated.

A file has an entry for each `[[model]]`, a shorthand is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xsp.target import SOURCES, Spec
from xsp.text import suggest
from xsp.zoo.definition.document import DefinitionError, Document, parse
from xsp.zoo.definition.schema import SETTINGS, TABLES, Key

_PATHS = ("onnx", "tf-saved-model")  # sources after which a path stands, in which commas are commas


@dataclass(frozen=True, slots=True)
class Wish:
    """What an entry asks for: `timm:resnet*` of `timm:resnet*,vit_*`.

    Attributes:
        written: As it stands in the file, to find its line.
        text: What `xsp.target.find` takes.
    """

    written: str
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A group of models with the same settings.

    Attributes:
        document: Where it stands.
        path: Its place there.
        wishes: Which models.
        said: What is said of them, by key of the schema: settings of the defaults too.
    """

    document: Document
    path: tuple[str | int, ...]
    wishes: tuple[Wish, ...]
    said: Mapping[str, Any] = field(default_factory=dict)

    def error(self, key: str, message: str, word: str = "") -> DefinitionError:
        """Return the error that says where a key of the entry, or its default, is wrong."""
        path = (*self.path, key)
        if path not in self.document.lines and ("defaults", key) in self.document.lines:
            path = ("defaults", key)
        return self.document.error(path, message, word)

    @property
    def targets_key(self) -> str:
        """The key that names the models."""
        return "targets" if "targets" in self.said else "target"

    def place(self, word: str = "") -> str:
        """Return where the models are named."""
        return self.document.place((*self.path, self.targets_key), word)


def read_entries(text: str) -> tuple[str, list[Entry]]:
    """Return the name and the entries of a zoo file or a shorthand.

    Raises:
        DefinitionError: Something in it is not possible; the message names file and line.
        OSError: The file cannot be read.
    """
    if text.endswith(".toml"):
        return _of_file(Path(text))
    if Path(text).is_file():
        raise DefinitionError(f"{text} is no zoo: the name of a zoo file ends in .toml")
    document = Document(text, {})
    return text, [Entry(document, (), tuple(_wishes(text, Path())), {"target": text})]


def read_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options say, by key of the schema.

    Raises:
        DefinitionError: A value is not possible.
    """
    said = {}
    for key, given in options.items():
        try:
            said[key] = SETTINGS[key].read(given)
        except ValueError as error:
            raise DefinitionError(f"--{key.replace('_', '-')}: {error}") from error
    return said


def _of_file(path: Path) -> tuple[str, list[Entry]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DefinitionError(
            f"there is no zoo file {path}: xsp zoo init {path} writes one to begin with"
        ) from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"{path} is no TOML file: it is not UTF-8 ({error})") from error
    document = parse(text, str(path))
    _check_tables(document)
    zoo = _table(document, ("zoo",))
    defaults = _table(document, ("defaults",))
    count = len(document.values.get("model", ()))
    entries = [_entry(document, number, defaults, path.parent) for number in range(count)]
    if not entries:
        raise DefinitionError(f'{path} has no model: add [[model]] with target = "torchvision"')
    return zoo.get("name", path.stem), entries


def _check_tables(document: Document) -> None:
    for name, table in document.values.items():
        if name not in TABLES:
            raise document.error(
                (name,), f"there is no [{name}]{suggest(name, TABLES)}: {', '.join(TABLES)}"
            )
        several = isinstance(table, list) and all(isinstance(each, Mapping) for each in table)
        if name == "model" and not several:
            raise document.error((name,), "each model has a table of a list: write [[model]]")
        if name != "model" and not isinstance(table, Mapping):
            raise document.error((name,), f"this is one table: write [{name}]")


def _table(document: Document, path: tuple[str | int, ...]) -> dict[str, Any]:
    """Return what a table says, by key.

    Raises:
        DefinitionError: There is no such key, or a value is not possible.
    """
    table: Any = document.values
    for part in path:
        table = table[part] if isinstance(part, int) else table.get(part, {})
    keys = TABLES[str(path[0])]
    return {key: _read(document, (*path, key), given, keys) for key, given in table.items()}


def _read(
    document: Document, path: tuple[str | int, ...], given: Any, keys: Mapping[str, Key]
) -> Any:
    name = str(path[-1])
    if name not in keys:
        raise document.error(
            path, f"there is no key {name!r} here{suggest(name, keys)}: {', '.join(keys)}"
        )
    try:
        return keys[name].read(given)
    except ValueError as error:
        raise document.error(path, f"{name}: {error}") from error


def _entry(document: Document, number: int, defaults: Mapping[str, Any], folder: Path) -> Entry:
    path = ("model", number)
    said = _table(document, path)
    if ("target" in said) == ("targets" in said):
        both = "not both" if "target" in said else "and here is neither"
        raise document.error(path, f"a model has a target or a list of targets, {both}")
    named = said.get("targets") or (said["target"],)
    wishes = tuple(wish for each in named for wish in _wishes(each, folder))
    return Entry(document, path, wishes, {**defaults, **said})


def _wishes(text: str, folder: Path) -> Iterator[Wish]:
    """Yield what a text asks for: the parts of a list after a source, paths from the folder on."""
    source, _, names = text.partition(":")
    if source in SOURCES and source not in (*_PATHS, "jax"):
        for name in names.split(",") if names else [""]:
            yield Wish(text, f"{source}:{name.strip()}" if name.strip() else source)
    elif source in _PATHS:
        yield Wish(text, f"{source}:{_from(folder, names)}")
    elif any(Spec(text).in_file):
        before = "jax:" if source == "jax" else ""
        yield Wish(text, before + _from(folder, text.removeprefix(before)))
    else:
        yield Wish(text, text)


def _from(folder: Path, path: str) -> str:
    """Return a path as it is found from anywhere."""
    return os.path.abspath(folder / path)
