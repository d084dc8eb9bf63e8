"""Calls of Keras layers in; records of layer, start and end of each call out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xsp.clock import Clock


@dataclass(frozen=True, slots=True)
class KerasLayer:
    """A layer of a model that was called.

    Attributes:
        path: Names from the root model to the layer, both included.
    """

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerRecords:
    """The recorded calls of layers, and every layer of the models that were called.

    Attributes:
        layers: All layers of these models, also those that ran in a graph, without a call.
        dropped: How many calls were lost.
        problems: Sentences on what could not be recorded.
    """

    layers: tuple[KerasLayer, ...] = ()
    dropped: int = 0
    problems: tuple[str, ...] = ()


class LayerRecorder:
    """Records every call of a layer, or the outermost ones only, between `start` and `stop`."""

    def __init__(self, arrived: Callable[[], None] = lambda: None) -> None:
        self._arrived = arrived

    def start(self, clock: Clock, *, detail: bool = False, outermost: bool = False) -> None:
        """Begin to record."""

    def disarm(self) -> None:
        """End recording."""

    def stop(self) -> LayerRecords:
        """End recording, and return the records."""
        return LayerRecords()
