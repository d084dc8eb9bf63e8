"""Numbers and names the models in a program's log."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import count
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """A model, or a function, as a log knows it.

    Attributes:
        number: Tells the model from all others of its block.
        name: A name that no other one has of this framework's: `mlp (2)`.
    """

    number: int
    name: str


class Owners:
    """Models that were called, by themselves; they are not kept alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, Owner] = weakref.WeakKeyDictionary()
        self._names: dict[str, int] = {}
        self._numbers = count(id(self))  # numbers of other frameworks begin elsewhere

    def of(self, model: Any, name: str) -> Owner:
        """Return number and name of a model, which has this name if no other one has it."""
        owner = self._known.get(model)
        if owner is None:
            same = self._names[name] = self._names.get(name, 0) + 1
            owner = Owner(next(self._numbers), name if same == 1 else f"{name} ({same})")
            self._known[model] = owner
        return owner
