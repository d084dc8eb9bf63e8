"""Compares a call's arguments and model before and after it, by fingerprints.

>>> log = {"steps": [1]}
>>> before = Contents([("log", log)])
>>> log["steps"].append(2)
>>> before.changes(Contents([("log", log)]))
'log.steps'
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
import zlib
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Sequence
from types import MemberDescriptorType, NoneType, SimpleNamespace
from typing import Any

import numpy as np

from xsp.provider import Fingerprinting, ModelCall

MOST_OBJECTS = 50_000  # that are looked at: a tenth of a second
_NAMED = 3  # changes that a sentence names
_PLAIN = (NoneType, bool, int, float, complex, str, bytes, type(Ellipsis))
# Of Python's own library only these are looked into: no threads, locks, files or loggers.
_OPEN = (dict, list, set, SimpleNamespace, UserDict, UserList)


class Contents:
    """Fingerprints of all objects that can be reached from some values; nothing is copied.

    Containers and plain values are compared by what they hold, other objects by what they are and
    by their attributes, which are read past properties: no code of the user's runs.

    Args:
        roots: The values, with their names.
        frameworks: Providers that know when their frameworks' arrays were written to.

    Attributes:
        unread: Why some objects could not be looked at; empty if all could.
    """

    def __init__(
        self, roots: Iterable[tuple[str, Any]], frameworks: Sequence[Fingerprinting] = ()
    ) -> None:
        self.unread = ""
        self._facts: dict[str, list[Any]] = {}
        self._frameworks = frameworks
        self._alive: dict[int, Any] = {}  # an id tells an object only as long as it lives
        queue = deque(roots)
        while queue and not self.unread:
            name, value = queue.popleft()
            if id(value) in self._alive and not isinstance(value, _PLAIN):
                continue
            try:
                fact, parts = self._look(value)
                queue.extend((f"{name}.{part}", item) for part, item in parts)
            except Exception as error:  # noqa: BLE001  the user's objects may raise anything
                self.unread = f"looking at {name} raised {type(error).__name__}: {error}"
                return
            self._facts.setdefault(name, []).append((type(value), fact))
            if not isinstance(value, _PLAIN):
                self._alive[id(value)] = value
            if len(self._facts) > MOST_OBJECTS:
                self.unread = f"it holds more than {MOST_OBJECTS:,} objects"

    def changes(self, later: Contents) -> str:
        """Return the names of what is another in later contents, for people; empty if nothing."""
        names = dict.fromkeys((*self._facts, *later._facts))
        changed = [name for name in names if self._facts.get(name) != later._facts.get(name)]
        outer = set(changed)  # of what has come or gone, only the container is named
        shown = [n for n in changed if n in self._facts or n.rpartition(".")[0] not in outer]
        return ", ".join(shown[:_NAMED]) + (" …" if len(shown) > _NAMED else "")

    def _look(  # noqa: PLR0911  # kinds of value
        self, value: Any
    ) -> tuple[Any, Iterable[tuple[str, Any]]]:
        """List the fingerprints of a value and its members, by name."""
        if isinstance(value, _PLAIN):
            return value, ()
        for framework in self._frameworks:
            if (fingerprint := framework.fingerprint(value)) is not None:
                return fingerprint, ()
        cls = type(value)  # a proxy says that it is of the class that it stands for
        if issubclass(cls, np.ndarray):
            return (value.shape, value.dtype, zlib.crc32(value.tobytes())), ()
        if issubclass(cls, random.Random):
            return value.getstate(), ()
        if issubclass(cls, np.random.Generator):
            return repr(value.bit_generator.state), ()
        if issubclass(cls, bytearray):
            return bytes(value), ()
        if issubclass(cls, (set, frozenset)):
            return frozenset(map(_key, value)), ()
        if issubclass(cls, (list, tuple, deque)):
            if set(map(type, value)) <= set(_PLAIN):  # a million numbers are one fact
                return tuple(value), ()
            numbered = ((str(number), item) for number, item in enumerate(value))
            return len(value), [*numbered, *_attributes(value)]
        if issubclass(cls, dict):
            return [*map(_key, value)], [*_keyed(value), *_attributes(value)]
        return id(value), _attributes(value)


def arguments_of(call: ModelCall) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call, by name, with those that a partial holds."""
    function = call.function
    while isinstance(function, functools.partial):
        yield from _named(function.args, function.keywords)
        function = function.func
    yield from _named(call.args, call.kwargs)


def _named(args: Iterable[Any], kwargs: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f"argument {number}", value) for number, value in enumerate(args, 1))
    yield from kwargs.items()


def _key(value: Any) -> Any:
    """Make an identity of a key without running the user's own comparison."""
    return value if isinstance(value, _PLAIN) else id(value)


def _keyed(items: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    return ((str(k) if isinstance(k, _PLAIN) else "…", v) for k, v in dict.items(items))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object of a program's or a library's class."""
    if isinstance(value, type) or inspect.isroutine(value) or inspect.ismodule(value):
        return
    cls = type(value)
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names and not isinstance(value, _OPEN):
        return
    for parent in cls.__mro__:
        for name, member in vars(parent).items():
            if isinstance(member, MemberDescriptorType) and "__slots__" in vars(parent):
                try:
                    yield name, member.__get__(value)
                except AttributeError:  # a slot that is empty
                    continue
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if isinstance(attributes, dict):
        yield from _keyed(attributes)
