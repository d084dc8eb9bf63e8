"""Models in; a name for people out: the class, with a number for each further model of it."""

from __future__ import annotations

import weakref
from typing import Any

from xsp_levels.framework.torch.program.call import subject


class ModelNames:
    """Names of models for people, looked up at each outermost call of a module."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._of_class: dict[str, list[weakref.ref[Any] | None]] = {}

    def of(self, module: Any) -> str:
        """Return the name of a model; empty for a module without parameters, which is none.

        The name is the model's class, with a number for each further model of the class.
        """
        known = self._known.get(id(module))
        # A module may get further parts, and parameters with them.
        if known is not None and known[0]() is module and known[2] == _size(module):
            return known[1]
        name = self._new_name(module)
        self._known[id(module)] = (weakref.ref(module), name, _size(module))
        return name

    def _new_name(self, module: Any) -> str:
        if next(iter(module.parameters()), None) is None:
            return ""
        plain = subject(module)
        number = self._number(plain, module)
        return plain if number == 0 else f"{plain} ({number + 1})"

    def _number(self, name: str, module: Any) -> int:
        """Return the model's number in its class: its own, or the least that no other has."""
        places = self._of_class.setdefault(name, [])
        living = [place() if place is not None else None for place in places]
        for number, other in enumerate(living):
            if other is module or other is None:
                places[number] = weakref.ref(module)
                return number
        places.append(weakref.ref(module))
        return len(places) - 1


def _size(module: Any) -> int:
    return len(module._modules) + len(module._parameters)
