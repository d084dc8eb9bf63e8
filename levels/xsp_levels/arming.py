"""Undoing a half-done arming: a function in, a context that calls it on failure out."""

from __future__ import annotations

from collections.abc import Callable


class undone_on_failure:  # noqa: N801  # reads as what it is in a with statement
    """Call a function if the block raises anything, an interrupt too; the exception passes on.

    Args:
        undo: Disarms whatever the block has armed by then.

    >>> from contextlib import suppress
    >>> with suppress(IndexError), undone_on_failure(lambda: print("taken back")):
    ...     [][0]
    taken back
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Call the function if there is an exception."""
        if kind is not None:
            self._undo()
