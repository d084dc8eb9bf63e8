"""Records of one visit to ONNX Runtime: runs of sessions, and events of their twins' profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from xsp.provider import Request
from xsp_levels.framework.onnxruntime.layer import Layers

Integers = npt.NDArray[np.int64]


def _none() -> Integers:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the program that is a span of kind `region`.

    Attributes:
        name: Name of the span.
        start_ns: When it began.
        end_ns: When it ended.
        thread: `threading.get_ident()`.
        model: Name of the model.
        error: Class of the exception that left it; None without.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    model: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NodeEvents:
    """The nodes that the twin of one session ran in a visit.

    Attributes:
        model: Name of the model.
        layers: Its layers.
        nodes: Name, operator and execution provider of each node.
        node: Which of them each event is.
        start_ns: When each event began, on the clock of the visit; cut to whole microseconds.
        duration_ns: How long it took, cut alike.
        thread: The kernel's number of its thread.
        run: Number of the run that each event is of; -1 where no run is around it.
        arguments: What the profile says of each event, as JSON; empty in runs without detail.
        uncertainty_ns: By how much starts may be wrong, besides being cut.
        threads: How many threads a node may use, as the session's options say; None: ONNX Runtime
            chooses.
    """

    model: str
    layers: Layers = field(default_factory=Layers)
    nodes: tuple[tuple[str, str, str], ...] = ()
    node: Integers = field(default_factory=_none)
    start_ns: Integers = field(default_factory=_none)
    duration_ns: Integers = field(default_factory=_none)
    thread: Integers = field(default_factory=_none)
    run: Integers = field(default_factory=_none)
    arguments: tuple[str, ...] = ()
    uncertainty_ns: int = 0
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class OrtRecords:
    """The records of one visit.

    Attributes:
        request: What was asked for.
        parts: Runs of sessions, and sessions that were made.
        threads: Python's number of each thread, by the kernel's.
        events: Nodes, of each session that was run.
    """

    request: Request
    parts: tuple[Part, ...] = ()
    threads: dict[int, int] = field(default_factory=dict)
    events: tuple[NodeEvents, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadRecords:
    """Records whose profiles ONNX Runtime has not written yet, which it does once, at their end.

    Attributes:
        records: All else.
        pending: Functions that have the profiles written, and return what the visit has of them.
        ready: What is kept for visits to come, as long as the measurement lasts.
    """

    records: OrtRecords
    pending: tuple[Callable[[], NodeEvents], ...]
    ready: tuple[object, ...] = ()

    def read(self) -> OrtRecords:
        """Return whole records."""
        return replace(self.records, events=tuple(read() for read in self.pending))
