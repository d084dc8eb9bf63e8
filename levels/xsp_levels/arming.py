"""Provides a context that calls a function to disarm a level if arming the level fails.

Here is also noted which of the vendors' profilers run for xsp, so that a level can tell them from
the user's.
"""

from __future__ import annotations

from collections.abc import Callable

OWN: set[str] = set()  # profilers that a level of xsp has running, by name: "kineto"


class undone_on_failure:  # noqa: N801  # reads as what it is in a with statement
    """Call a function if the block raises anything, an interrupt too, and let the exception pass.

    Args:
        undo: Disarms whatever the block has armed until it raised.

    >>> from contextlib import suppress
    >>> with suppress(IndexError), undone_on_failure(lambda: print("taken back")):
    ...     [][0]
    taken back
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        """Enter the block; nothing is called."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Call the function if there is an exception."""
        if kind is not None:
            self._undo()
