"""State: values of a framework that a call may change in, what they were and a way back out.

A call that is repeated must find its arguments and its model as the first call found them. The
core looks through containers and through the attributes of objects; what lies in a tensor, and
which objects are models, only the framework's provider knows (`Keeper`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Protocol, runtime_checkable


class Role(Enum):
    """What the objects of a class are to a call that changes them."""

    VALUE = "value"
    """Holds numbers that a call can overwrite: a tensor, a generator of random numbers."""
    MODEL = "model"
    """A model: its buffers and attributes change from call to call, its parameters by training."""
    CLOSED = "closed"
    """Neither: not looked into. An optimizer, a data set, a compiler's cache."""


@runtime_checkable
class Kept(Protocol):
    """What a value was at one moment, so that a later change is noticed and can be undone.

    Attributes:
        nbytes: Bytes of the copy that was made of the value; 0 without a copy.
        trained: Whether training changes the value, and nothing else: a parameter. Such a value
            is not put back between two calls.
    """

    nbytes: int
    trained: bool

    def changed(self) -> bool:
        """Return whether the value has been written to since, or since it was last put back."""
        ...

    def obstacle(self) -> str:
        """Return why the value cannot be put back, as the end of a sentence; empty if it can."""
        ...

    def put_back(self) -> None:
        """Make the value what it was; the object stays the same."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A provider that can tell what a call has changed, and undo it.

    Every method may be called at any time while the provider is not armed, costs nothing if the
    framework is not imported, and imports nothing.
    """

    def role(self, cls: type) -> Role | None:
        """Return what the objects of a class are, None if they are none of the framework's."""
        ...

    def keep(self, value: Any, room_bytes: int) -> Kept:
        """Keep what an object of role `VALUE` is now.

        Args:
            value: The object.
            room_bytes: How large a copy may be. A larger value is kept without a copy, so that
                a change is noticed and cannot be undone.
        """
        ...

    def parts(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Yield values that an object of role `MODEL` holds, by name, and no attribute shows."""
        ...

    def keep_random(self) -> Callable[[], None]:
        """Return a function that puts the framework's random numbers back to where they are."""
        ...
