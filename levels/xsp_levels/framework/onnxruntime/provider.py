"""The ONNX Runtime provider: records runs and nodes, and makes rows of the records.

Runs are found by the functions of ONNX Runtime's Python class of sessions; nodes are recorded by
ONNX Runtime's own profiler, in a `twin` of each session.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.onnxruntime_profile import NODE, US, Event, nodes
from xsp.provider import (
    CallFacts,
    EmptySpan,
    ModelCall,
    ProgramLog,
    Records,
    Request,
    SpanRows,
    concat_rows,
    no_rows,
    span_rows,
)
from xsp.scope import layered
from xsp_levels.arming import undone_on_failure
from xsp_levels.framework.onnxruntime.call import (
    Again,
    found_call,
    is_repeatable,
    repeated,
    session_call,
    session_of,
    subject,
    tensor_inputs,
)
from xsp_levels.framework.onnxruntime.entry_point import ASYNC, EntryPoint, unseen
from xsp_levels.framework.onnxruntime.layer import NodeOrigin, described
from xsp_levels.framework.onnxruntime.record import (
    Integers,
    NodeEvents,
    OrtRecords,
    Part,
    UnreadRecords,
)
from xsp_levels.framework.onnxruntime.recorder import RunRecorder, Twins
from xsp_levels.framework.owner import Owners
from xsp_levels.framework.past_part import log_past
from xsp_levels.native.thread import named


class OnnxRuntime:
    """Observes sessions of ONNX Runtime."""

    name = "onnxruntime"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.REGION, Kind.OP})
    record_type = OrtRecords

    def __init__(self) -> None:
        self._entry = EntryPoint()
        self._twins = Twins()
        self._coming: dict[Any, Again | None] = {}
        self._recorder: RunRecorder | None = None

    def unavailable(self) -> str | None:
        """Return why ONNX Runtime cannot be observed here, or None if it can."""
        if "onnxruntime" in sys.modules or importlib.util.find_spec("onnxruntime") is not None:
            return None
        return "ONNX Runtime is not installed; `pip install xsp[onnxruntime]` brings it"

    def remark(self) -> str | None:
        """Return how nodes are recorded."""
        return "nodes are recorded in a second session of each model, which takes as much memory"

    def start(self, clock: Clock, request: Request) -> None:
        """Make the twins that are needed, and record runs from now on."""
        with undone_on_failure(self._disarm):
            self._recorder = RunRecorder(clock, request, self._twins, self._coming)
            self._entry.recorder = self._recorder
            self._entry.place()

    def stop(self) -> Records:
        """Stop recording, and return the records; profiles are read later."""
        recorder = self._recorder
        self._disarm()
        return (
            recorder.stop() if recorder is not None else Records(OrtRecords(Request(frozenset())))
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: runs, nodes, and the layers of these. Pure."""
        data = _read(records.data)
        frames = []
        if Kind.REGION in data.request.kinds:
            frames += [part_rows(data.parts)]
        if Kind.OP in data.request.kinds:
            frames += [node_rows(data)]
        return concat_rows(frames)

    def plain(self, records: Records) -> Records:
        """Return records with the events of the twins' profiles."""
        return replace(records, data=_read(records.data))

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty node; None for other kinds, and where no session has run."""
        session = self._twins.one_seen() if kind is Kind.OP else None
        return empty_span(session, self._record) if session is not None else None

    def watcher(self) -> OrtWatcher:
        """Return the watcher that logs ONNX Runtime's runs in a program."""
        self._twins.forget()
        return OrtWatcher(self._entry, self._come)

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a session or runs one; else None."""
        self._twins.forget()
        call = session_call(function, args, kwargs)
        if call is not None:
            self._twins.see(session_of(call.args, call.kwargs, call.function))
        return call

    def synchronize(self) -> bool:
        """Return False: a run returns when its outputs are there."""
        return False

    def _record(self, session: Any, *args: Any) -> None:
        """Make a run of a session, recorded if anything is."""
        recorder = self._recorder
        if recorder is not None:
            recorder.expect(session, None)
            recorder.run(type(session).run, (session, *args), {}, "run")

    def _come(self, session: Any, again: Again | None) -> None:
        """Note that a session is about to run; None: that the run is over."""
        self._coming = {} if session is None else {session: again}
        if session is not None:
            self._twins.see(session)
            if self._recorder is not None:
                self._recorder.expect(session, again)

    def _disarm(self) -> None:
        self._recorder = self._entry.recorder = None
        self._entry.place()


def _read(data: OrtRecords | UnreadRecords) -> OrtRecords:
    return data.read() if isinstance(data, UnreadRecords) else data


# Logs the runs of ONNX Runtime's sessions in a program, and the making of sessions.

_BEGUN = "begin of run_async"  # a phase; what such a run does afterwards is in no call


class OrtWatcher:
    """See `xsp.provider.ProgramWatcher`.

    Args:
        entry: Finds the runs.
        coming: Is told of each session that is about to run, and how to make the run once more;
            then that the run is over.
    """

    logs_layers = False

    def __init__(self, entry: EntryPoint, coming: Callable[[Any, Again | None], None]) -> None:
        self._entry, self._coming = entry, coming
        self._log: Any = None

    def begin(self, log: ProgramLog) -> None:
        """Put the hooks in place, as soon as the program has imported ONNX Runtime."""
        self._log, self._owners = log, Owners()
        self.resume()

    def suspend(self) -> None:
        """Take the hooks out for a while."""
        self._entry.watcher = None
        self._entry.place()

    def resume(self) -> None:
        """Put the hooks in place."""
        self._entry.watcher = self
        self._entry.place()

    def end(self) -> None:
        """Take the hooks out for good, and let go of everything."""
        self.suspend()
        self._log = None

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        method: str,
    ) -> Any:
        """Make a run, and log it if it lies in no other call."""
        log = self._log
        if log is None or log.local.inside is not None:
            return function(*args, **kwargs)
        session = session_of(args, kwargs)
        owner = self._owners.of(session, subject(session))
        inputs = tensor_inputs((*args, *kwargs.values()))
        number = log.call_number(
            (owner.number, method, inputs),
            lambda: CallFacts(
                owner.name, owner.number, phase=_BEGUN if method == ASYNC else "", inputs=inputs
            ),
        )
        if method == ASYNC:
            return log.make(number, function, args, kwargs)
        if log.keeping:
            log.keep(number, found_call(function, args, kwargs, method))
        begin_ns = log.now()
        self._coming(session, repeated(function, args, kwargs) if is_repeatable(method) else None)
        log_past(log, ("", begin_ns, log.now()))  # a second session may have been made
        try:
            return log.make(number, function, args, kwargs)
        finally:
            self._coming(None, None)

    def made(self, session: Any, parts: Sequence[tuple[str, int, int]]) -> None:
        """Log the making of a session: parts of it, then the whole."""
        log = self._log
        if log is not None:
            *inside, whole = parts
            log_past(log, whole, [part for part in inside if part[2] > part[1]])


# Makes a node that does next to nothing, for ONNX Runtime's profiler to record.

# What ONNX calls these numbers: kinds of fields, the type of elements, versions of its format.
_NUMBER, _BYTES = 0, 2
_FLOAT = 1
_FORMAT, _OPERATORS = 8, 17

EMPTY = "Mul"
_CHAIN = ("Add",) * 8  # what runs before: the first nodes of a run take longer than those after
_PROVIDER = "CPUExecutionProvider"


def empty_span(session: Any, record: Callable[..., object]) -> EmptySpan:
    """Return an empty node.

    The node multiplies a number by another: two inputs, as most nodes have. What it takes
    unrecorded is what a session takes longer than one that lacks this node.

    Args:
        session: The user's session, whose number of threads counts.
        record: Makes a run while the provider is armed; takes the session, and what it is run with.
    """
    threads = session._sess.session_options.intra_op_num_threads
    whole, rest = (_session(operators, threads) for operators in ((*_CHAIN, EMPTY), _CHAIN))
    inputs = {"x": sys.modules["numpy"].zeros(1, "float32")}
    return EmptySpan(
        EMPTY,
        partial(_unseen, record, whole, None, inputs),
        bare=partial(_unseen, whole.run, None, inputs),
        apart=partial(_unseen, rest.run, None, inputs),
    )


def model_bytes(operators: tuple[str, ...]) -> bytes:
    """Return a model in ONNX's format: operators in a row, each on the last one's output and `x`.

    >>> len(model_bytes(("Add", "Mul"))) < 120
    True
    """
    values = ["x", *(f"v{number}" for number in range(len(operators)))]
    nodes = b"".join(
        _field(1, _node(operator, values[at], values[at + 1]))
        for at, operator in enumerate(operators)
    )
    graph = nodes + _field(2, b"empty") + _field(11, _value("x")) + _field(12, _value(values[-1]))
    versions = _field(1, _FORMAT) + _field(8, _field(2, _OPERATORS))
    return versions + _field(7, graph)


def _session(operators: tuple[str, ...], threads: int) -> Any:
    ort = sys.modules["onnxruntime"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    with unseen():
        return ort.InferenceSession(model_bytes(operators), options, providers=[_PROVIDER])


def _unseen(call: Callable[..., object], *args: Any) -> object:
    with unseen():
        return call(*args)


def _node(operator: str, taken: str, made: str) -> bytes:
    inputs = b"".join(_field(1, name.encode()) for name in (taken, "x"))
    return (
        inputs + _field(2, made.encode()) + _field(3, made.encode()) + _field(4, operator.encode())
    )


def _value(name: str) -> bytes:
    """Return the description of a value that is one number."""
    shape = _field(1, _field(1, 1))
    return _field(1, name.encode()) + _field(2, _field(1, _field(1, _FLOAT) + _field(2, shape)))


def _field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return _varint(number << 3 | _NUMBER) + _varint(content)
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


# Makes rows of runs, nodes and the nodes' layers from records of one visit. Pure.

_ROOT = 0  # the id of the step


def part_rows(parts: Sequence[Part]) -> SpanRows:
    """Return a row of kind region per run, or part of making a session; ids count from 1."""
    if not parts:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": [part.name for part in parts],
            "start_ns": [part.start_ns for part in parts],
            "end_ns": [part.end_ns for part in parts],
            "thread": [part.thread for part in parts],
            "id": list(range(1, len(parts) + 1)),
            "attr.error": pl.Series([part.error for part in parts], dtype=pl.String),
        }
    )


def node_rows(records: OrtRecords) -> SpanRows:
    """Return a row of kind op per node, inside rows of kind layer that are derived from these."""
    frames = [
        _layered(events, records, number)
        for number, events in enumerate(records.events)
        if len(events.node)
    ]
    return concat_rows(frames)


def _layered(events: NodeEvents, records: OrtRecords, number: int) -> SpanRows:
    """Return the nodes and layers of one session; ids differ from those of other sessions."""
    first = len(records.parts) + 1 + sum(len(each.node) for each in records.events[:number])
    rows = _nodes(events, records, first)
    origins = [events.layers.nodes.get(name, NodeOrigin()) for name in rows["attr.node"]]
    attributes = described(events.layers.layers)
    return layered(
        rows,
        pl.Series([list(each.layers) for each in origins], dtype=pl.List(pl.String)),
        steps=pl.Series(events.run),
        describe=attributes.get,
    )


def _nodes(events: NodeEvents, records: OrtRecords, first: int) -> SpanRows:
    start, end = event_times(events)
    thread = named(events.thread, records.threads)
    rows = nodes(_events(events, start, end))
    origins = [events.layers.nodes.get(name, NodeOrigin()) for name in rows["attr.node"]]
    if events.arguments:
        rows = rows.with_columns(_inputs(rows, origins))
    # The run that each node on a thread of ONNX Runtime lies in; others lie by time.
    runs = [(number, part) for number, part in enumerate(records.parts, 1)]
    own = np.isin(events.thread, list(records.threads))
    parents = [
        None if here else _around(runs, at) for here, at in zip(own, start.tolist(), strict=True)
    ]
    return rows.with_columns(
        pl.Series("thread", thread),
        pl.Series("id", np.arange(first, first + rows.height)),
        pl.Series("parent_id", parents, dtype=pl.Int64),
        pl.lit(US + events.uncertainty_ns, pl.Int64).alias("uncertainty_ns"),
        pl.lit("onnxruntime").alias("attr.framework"),
        pl.Series(
            "attr.inputs",
            [None if each.inputs is None else list(each.inputs) for each in origins],
            dtype=pl.List(pl.String),
        ),
        pl.lit(events.threads, pl.Int64).alias("attr.threads"),
        _texts("attr.scope", (".".join(each.layers) or None for each in origins)),
        _texts("attr.source_ops", (", ".join(each.sources) or None for each in origins)),
        pl.Series(
            "attr.fused_layers",
            [list(each.fused_layers) or None for each in origins],
            dtype=pl.List(pl.String),
        ),
    )


def _inputs(rows: SpanRows, origins: Sequence[NodeOrigin]) -> list[pl.Series]:
    """Return all inputs of nodes, with the weights that ONNX Runtime packed, and then forgot.

    Of such weights its profile tells neither shape nor size.
    """
    shapes, dtypes, sizes = [], [], []
    columns = ("attr.input_shapes", "attr.input_dtypes", "attr.parameter_bytes")
    for shape, dtype, size, origin in zip(*(rows[name] for name in columns), origins, strict=True):
        told = [] if shape is None else list(zip(shape.to_list(), dtype, strict=True))
        weights = [each for each in origin.weights if each is not None]
        if len(told) == len(origin.weights) - len(weights):
            rest = iter(told)
            told = [
                next(rest) if each is None else (list(each.shape), each.dtype)
                for each in origin.weights
            ]
            size = sum(each.nbytes for each in weights)  # noqa: PLW2901
        shapes.append([each for each, _ in told])
        dtypes.append([each for _, each in told])
        sizes.append(size)
    return [
        pl.Series(columns[0], shapes, dtype=pl.List(pl.List(pl.Int64))),
        pl.Series(columns[1], dtypes, dtype=pl.List(pl.String)),
        pl.Series(columns[2], sizes, dtype=pl.Int64),
    ]


def _texts(name: str, values: Iterable[str | None]) -> pl.Series:
    return pl.Series(name, list(values), dtype=pl.String)


def _events(events: NodeEvents, start: Integers, end: Integers) -> list[Event]:
    told: Sequence[Mapping[str, Any]]
    if events.arguments:
        told = [msgspec.json.decode(text) for text in events.arguments]
    else:
        facts = [{"op_name": op, "provider": provider} for _, op, provider in events.nodes]
        told = [facts[number] for number in events.node.tolist()]
    names = [name + NODE for name, _, _ in events.nodes]
    times = zip(start.tolist(), end.tolist(), strict=True)
    return [
        Event(names[number], "Node", 0, *when, args)
        for number, when, args in zip(events.node.tolist(), times, told, strict=True)
    ]


def _around(runs: Sequence[tuple[int, Part]], at: int) -> int:
    inside = (number for number, run in runs if run.start_ns <= at <= run.end_ns)
    return next(inside, _ROOT)


# Estimates nanosecond times of nodes from times that were cut to whole microseconds.

_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


def event_times(events: NodeEvents) -> tuple[Integers, Integers]:
    """Return start and end of each event.

    >>> events = NodeEvents("net", nodes=(("a", "Relu", ""),), node=np.array([0, 0]),
    ...                     start_ns=np.array([3_000, 3_000]), duration_ns=np.array([0, 2_000]),
    ...                     thread=np.array([1, 1]))
    >>> [times.tolist() for times in event_times(events)]
    [[3333, 3666], [3666, 6166]]
    """
    holds = np.array([op in _CONTROL_FLOW for _, op, _ in events.nodes], bool)[events.node]
    order = np.lexsort((~holds, events.start_ns, events.thread))
    start = _spread(events, order)
    end = start + events.duration_ns + US // 2
    # Let no event end after the next one on its thread begins, but those that may hold that.
    before, after = order[:-1], order[1:]
    follows = (events.thread[before] == events.thread[after]) & ~holds[before]
    end[before] = np.where(follows, np.minimum(end[before], start[after]), end[before])
    for at in np.flatnonzero(holds):
        _hold(events, int(at), start, end)
    return start, end


def _spread(events: NodeEvents, order: Integers) -> Integers:
    """Return starts, spread over the microsecond that they were cut to, in the order given."""
    thread, start = events.thread[order], events.start_ns[order]
    first = np.append(True, (thread[1:] != thread[:-1]) | (start[1:] != start[:-1]))
    group = np.cumsum(first) - 1
    counts = np.bincount(group)
    place = np.arange(len(order)) - np.flatnonzero(first)[group] + 1
    found = np.empty_like(events.start_ns)
    found[order] = start + place * US // (counts[group] + 1)
    return found


def _hold(events: NodeEvents, at: int, start: Integers, end: Integers) -> None:
    """Let control flow end before what follows, and what lies inside end before it."""
    last = events.start_ns[at] + events.duration_ns[at]
    near = (events.thread == events.thread[at]) & (start > start[at])
    later = start[near & (events.start_ns >= last) & (start > end[at] - US)]
    end[at] = min(end[at], *later.tolist(), end[at])
    inside = near & (start < end[at])
    end[inside] = np.minimum(end[inside], end[at])
