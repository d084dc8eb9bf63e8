"""Events of TensorFlow's profiler in, a row of kind op per operator out."""

from __future__ import annotations

from dataclasses import dataclass

from xsp.clock import Clock
from xsp.provider import SpanRows, no_rows
from xsp_levels.framework.keras.layer import KerasLayer


@dataclass(frozen=True, slots=True)
class OperatorRecords:
    """The profiler's events, uninterpreted."""

    space: bytes = b""
    problems: tuple[str, ...] = ()


class OperatorRecorder:
    """Records every operator of the process between `start` and `stop`."""

    def start(self, clock: Clock, *, detail: bool) -> None:
        """Begin to record; if that is impossible, the records of `stop` say why."""

    def disarm(self) -> None:
        """End the recording now; `stop` returns the records later."""

    def stop(self) -> OperatorRecords:
        """End the recording, unless `disarm` has, and return the records."""
        return OperatorRecords()


def operator_rows(records: OperatorRecords, layers: tuple[KerasLayer, ...]) -> SpanRows:
    """Return a row per operator, and one per layer that no Python call shows."""
    return no_rows()
