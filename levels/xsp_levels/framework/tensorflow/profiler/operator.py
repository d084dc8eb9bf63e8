"""Operators of TensorFlow recorded, in; records of them, and later rows of kind op, out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from xsp.clock import Clock, SystemClock
from xsp.provider import SpanRows, no_rows
from xsp_levels.framework.keras.index import LayerIndex, layer_index
from xsp_levels.framework.tensorflow.profiler.detail import detail_columns
from xsp_levels.framework.tensorflow.profiler.event import read_events
from xsp_levels.framework.tensorflow.profiler.fusion import graphs, with_main
from xsp_levels.framework.tensorflow.profiler.graph import in_layers
from xsp_levels.framework.tensorflow.profiler.parameter import parameter_nodes
from xsp_levels.framework.tensorflow.profiler.row import operator_table
from xsp_levels.framework.tensorflow.profiler.session import Session, make_range
from xsp_levels.framework.tensorflow.profiler.shape import stated_shapes
from xsp_levels.framework.tensorflow.profiler.tracing import retraced, tracing_rows
from xsp_levels.framework.tensorflow.profiler.xla import with_instructions
from xsp_levels.native.alignment import PREFIX, REPEATS, AnchorReading

_RIVAL = (
    "operators were recorded only until TensorFlow's profiler was started: there can be only one "
    "session in a process; end it before xsp measures"
)


@dataclass(frozen=True, slots=True)
class OperatorRecords:
    """The profiler's events, uninterpreted.

    Attributes:
        space: An XSpace, as the profiler serialises it; empty if nothing was recorded.
        readings: The measurement's clock around the anchors among the events.
        layers: The layers of Keras that operators can be of, by their scopes.
        shapes: Arrays that nodes make, as texts, by the function and the node; in detail runs.
        parameters: Nodes that depend on no data, by the function (`parameter_nodes`).
        graphs: Nodes of the functions, as they were before any were fused (`fusion.graphs`).
        detail: Whether shapes and memory were asked for.
        problems: Sentences about what could not be recorded, and why.
    """

    space: bytes = b""
    readings: tuple[AnchorReading, ...] = ()
    layers: LayerIndex = field(default_factory=LayerIndex)
    shapes: dict[str, dict[str, str]] = field(default_factory=dict)
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    graphs: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    detail: bool = False
    problems: tuple[str, ...] = ()


class OperatorRecorder:
    """Records every operator of the process between `start` and `stop`.

    If the user starts TensorFlow's profiler in the meantime, the recording ends.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._now: Callable[[], int] = SystemClock.now
        self._readings: list[AnchorReading] = []
        self._problems: list[str] = []
        self._space = b""
        self._detail = False

    def start(self, clock: Clock, *, detail: bool) -> None:
        """Begin to record; if that is impossible, the records of `stop` say why."""
        self._now, self._detail = clock.now, detail
        try:
            self._session = Session(self._give_way, detail=detail)
        except RuntimeError as error:
            self._problems.append(f"operators were not recorded: {error}")
            return
        self._anchor(REPEATS)

    def anchor_thread(self) -> None:
        """Make an anchor on the calling thread, which tells the profiler's number of the thread."""
        if self._session is not None:
            self._anchor(1)

    def disarm(self) -> None:
        """End the recording now; `stop` returns the records later."""
        session = self._session
        if session is None:
            return
        try:
            self._anchor(REPEATS)
        finally:
            self._session = None
            try:
                self._space = session.end()
            except RuntimeError as error:
                self._problems.append(f"operators were not recorded: {error}")

    def stop(self) -> OperatorRecords:
        """End the recording, unless `disarm` has, and return the records."""
        self.disarm()
        return OperatorRecords(
            space=self._space,
            readings=tuple(self._readings),
            layers=layer_index(),
            shapes=stated_shapes(self._space) if self._detail else {},
            parameters=parameter_nodes(self._space),
            graphs=graphs(self._space),
            detail=self._detail,
            problems=(*self._problems, *retraced(self._space)),
        )

    def _anchor(self, repeats: int) -> None:
        name = PREFIX + str(threading.get_ident())
        for _ in range(repeats):
            before = self._now()
            end = make_range(name)
            inside = self._now()
            end()
            after = self._now()
            self._readings.append(AnchorReading(threading.get_ident(), before, inside, after))

    def _give_way(self) -> None:
        """End here and now: the user starts a session, and there can be only one."""
        self._problems.append(_RIVAL)
        self.disarm()


def operator_rows(records: OperatorRecords) -> SpanRows:
    """Return a row per operator, and one per layer that no Python call shows.

    Raises:
        ProviderError: The profiler recorded operators but no anchors, so no time is known.
    """
    events = read_events(records.space, records.readings)
    table = operator_table(events)
    if not table.height:
        return no_rows()
    table = with_main(with_instructions(table, records.space), records.graphs)
    columns = detail_columns(table, events, records.shapes) if records.detail else {}
    return in_layers(
        table, columns, records.layers, records.parameters, brief_left_out=not records.detail
    )


def compile_rows(records: OperatorRecords) -> SpanRows:
    """Return a row of kind pipeline for each time that a function was traced to a graph."""
    return tracing_rows(read_events(records.space, records.readings))
