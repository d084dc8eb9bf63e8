"""Arrays that a call may overwrite in; what they were, and the way back, out.

JAX's arrays do not change. But a function may be given an array to overwrite (it is donated), and
the array is gone after the call.
"""

from __future__ import annotations

import sys
from typing import Any

from xsp.provider import Kept, Role

_CLOSED_PACKAGES = ("jax.", "jaxlib.", "optax.", "orbax.")


def role(cls: type) -> Role | None:
    """Return what the objects of a class are to a call, without importing JAX."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "Array"):
        return None
    if cls.__module__.startswith("jax") and hasattr(cls, "is_deleted"):
        return Role.VALUE
    return Role.CLOSED if cls.__module__.startswith(_CLOSED_PACKAGES) else None


def keep(value: Any, room_bytes: int, *, donated: bool) -> Kept:
    """Return what an array is now.

    Args:
        value: The array.
        room_bytes: How large a copy may be.
        donated: Whether arrays may be donated, so that a copy is needed.
    """
    return KeptArray(value, room_bytes if donated else 0)


class KeptArray:
    """What an array was.

    Args:
        array: The array.
        room_bytes: How large a copy may be.
    """

    trained = False

    def __init__(self, array: Any, room_bytes: int) -> None:
        self._array = array
        plain = not array.is_deleted() and hasattr(array, "_replace_with")
        size = int(array.nbytes) if plain and room_bytes else 0
        copied = 0 < size <= room_bytes
        self._copy = array.copy() if copied else None
        self.nbytes = size if copied else 0

    def changed(self) -> bool:
        """Return whether the array is gone."""
        return bool(self._array.is_deleted())

    def obstacle(self) -> str:
        """Return why the array cannot be put back; empty if it can, or is still there."""
        if self._copy is not None or not self._array.is_deleted():
            return ""
        return "which was given away to be overwritten (donate_argnums)"

    def put_back(self) -> None:
        """Let the same object hold a copy of what it held."""
        if self._copy is not None and self._array.is_deleted():
            self._array._replace_with(self._copy.copy())
