"""Every error that xsp raises on purpose.

XspError
├── ProviderError       a provider broke the contract, or its library failed
├── MeasurementError    the measurement could not be made as asked
│   └── TargetFailedError   what was to be measured raised an exception
├── UnknownTargetError  nothing goes by that name (a ValueError as well)
├── TraceFormatError    a file is not a trace, or one that this version cannot read
└── ExportError         spans could not be handed over

Wrong arguments are `ValueError` and `TypeError`, as everywhere in Python.
"""

from __future__ import annotations


class XspError(Exception):
    """Root of the tree: catch it to catch whatever xsp raises on purpose."""


class ProviderError(XspError):
    """A provider broke its contract, or the library below it failed."""


class MeasurementError(XspError):
    """The measurement could not be made as asked."""


class TargetFailedError(MeasurementError):
    """What was to be measured raised an exception.

    Attributes:
        traceback: The traceback as Python prints it.
    """

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


class UnknownTargetError(XspError, ValueError):
    """Nothing goes by that name, or it cannot be measured in the way asked for."""


class TraceFormatError(XspError):
    """A file is not a trace, is damaged, or is newer than this version."""


class ExportError(XspError):
    """Spans could not be handed over to where they were sent.

    Attributes:
        delivery: The `xsp.export.Delivery` that counts them; None where
            nothing was sent.
    """

    def __init__(self, message: str, delivery: object | None = None) -> None:
        super().__init__(message)
        self.delivery = delivery
