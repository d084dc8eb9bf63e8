"""Arming: what a provider has armed comes off again where the rest cannot be armed."""

from __future__ import annotations

from collections.abc import Callable


class undone_on_failure:  # noqa: N801  # reads as what it is in a with statement
    """Undo what a block did if it raises anything, an interrupt too, and let that pass.

    Args:
        undo: Takes back what there is of it.

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
        """Undo it, if there is an exception."""
        if kind is not None:
            self._undo()
