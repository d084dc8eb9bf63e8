"""The errors that xsp raises on purpose, in one tree.

XspError
├── ProviderError       a provider broke the contract, or its library failed
├── MeasurementError    the measurement could not be made as asked
│   └── TargetFailedError   the model or function under measurement raised an exception
├── UnknownTargetError  no target has that name (a ValueError as well)
├── AnalysisError       a trace lacks what an analysis needs
├── TraceFormatError    a file is not a trace, or a trace that this version cannot read
└── ExportError         spans could not be handed over

Wrong arguments are `ValueError` and `TypeError`, as everywhere in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from xsp.delivery import Delivery

T = TypeVar("T")
R = TypeVar("R")


class XspError(Exception):
    """Root of the tree: `except XspError` catches every error that xsp raises on purpose."""


class ProviderError(XspError):
    """A provider broke its contract, or the library below it failed."""


class MeasurementError(XspError):
    """The measurement could not be made as asked.

    Attributes:
        out_of_memory: Whether memory did not suffice, as far as that can be told.
    """

    def __init__(self, *args: object, out_of_memory: bool = False) -> None:
        super().__init__(*args)
        self.out_of_memory = out_of_memory


class TargetFailedError(MeasurementError):
    """The model or function under measurement raised an exception.

    Attributes:
        traceback: The traceback as Python prints it.
    """

    def __init__(self, message: str, traceback: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message, out_of_memory=out_of_memory)
        self.traceback = traceback


class UnknownTargetError(XspError, ValueError):
    """No target has that name, or the target cannot be measured in the way asked for."""


class AnalysisError(XspError):
    """A trace lacks what an analysis of it needs."""


class TraceFormatError(XspError):
    """A file is not a trace, is damaged, or is newer than this version."""


class ExportError(XspError):
    """Spans could not be handed over to their destination.

    Attributes:
        delivery: The `Delivery` that counts the spans; None where none was sent.
    """

    def __init__(self, message: str, delivery: Delivery | None = None) -> None:
        super().__init__(message)
        self.delivery = delivery


def guarded(work: Callable[[], T], failed: Callable[[Exception], R]) -> T | R:
    """Call code of users, providers or plug-ins, which may raise anything.

    Args:
        work: The call.
        failed: Makes a result of the exception, if the call raises one.

    >>> guarded(lambda: 1 / 0, lambda error: float("nan"))
    nan
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001
        return failed(error)
