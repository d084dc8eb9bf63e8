"""The profile that ONNX Runtime writes in, rows of its runs, nodes and kernels out.

Every run of the session is an evaluation; nodes of the graph are operators, and those of a
sub-graph (`If`, `Loop`) lie in the node that runs it. Of a kernel the profile says which node
launched it, but not by which call. `event` reads the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.importers.onnxruntime.event import BOM, NODE, Event, Profile, read_profile
from xsp.importers.recording import Contents, Recording
from xsp.importers.source import Source
from xsp.kernel_name import full_name, short_name
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.quantity import counted, duration, shorten

_RUN = "model_run"
_EXECUTE = "::Execute"  # ends names of events that are the execution of a graph
_HEAD = re.compile(rb'^\s*\[.*?"cat"\s*:\s*"(Session|Node)"', re.DOTALL)
_KNOWN = re.compile(
    rb'"name"\s*:\s*"(model_loading_\w+|session_initialization|model_run|[^"]*_kernel_time'
    rb'|\w+Executor::Execute)"'
)
_CATEGORIES = ("Session", "Node", "Api", "Kernel")
_COPY = re.compile(r"Memcpy(Host|Device)(?:Array)?To(Host|Device)(?:Array)?")
_DTYPES = {"float": "float32", "double": "float64"}
_SIZES = {
    "attr.parameter_bytes": "parameter_size",
    "attr.input_bytes": "activation_size",
    "attr.output_bytes": "output_size",
}
_MOST_NAMES = 8  # in a message
_NAME = 60  # characters of a name in a message


class OnnxRuntime:
    """Reads profiles of ONNX Runtime (`SessionOptions.enable_profiling`)."""

    name = "onnxruntime"
    tool = "ONNX Runtime's profiler"

    def recognises(self, source: Source) -> bool:
        """Tell by the categories and names of the first events."""
        head = source.head.removeprefix(BOM)
        return bool(_HEAD.match(head) and _KNOWN.search(head))

    def read(self, source: Source) -> Contents:
        """Return what one process did in all runs of its session.

        Raises:
            TraceFormatError: No event of the file can be read.
        """
        with source.open() as file:
            profile = read_profile(file)
        events = profile.events
        if not events:
            raise TraceFormatError(f"{source.path} holds no events with times")
        runs = _one_by_one([event for event in events if event.name == _RUN])
        session = [event for event in events if event.category == "Session"]
        if runs:
            session = [event for event in session if not _is_outside(event, runs)]
        rows = concat_rows([*_session(session), _nodes(events), _calls(events), *_device(events)])
        problems = (*_damage(profile), *_left_out(events, runs))
        return (Recording("ONNX Runtime", rows, _rows(Kind.PIPELINE, runs), problems=problems),)


def _one_by_one(runs: list[Event]) -> list[Event]:
    """Return runs in the order of time; none if several threads ran the session at once.

    Whose a node is cannot be told then, for nodes may run in threads of a pool.
    """
    runs = sorted(runs, key=lambda run: (run.start, run.end))
    at_once = any(after.start < before.end for before, after in pairwise(runs))
    return [] if at_once else runs


def _is_outside(event: Event, runs: Sequence[Event]) -> bool:
    early, late = event.end <= runs[0].start, event.start >= runs[-1].end
    return early or late or event.name == _RUN


def _session(events: Sequence[Event]) -> tuple[SpanRows, SpanRows]:
    """Return rows of what the session did besides its nodes."""
    executions = [event for event in events if event.name.endswith(_EXECUTE)]
    others = [event for event in events if not event.name.endswith(_EXECUTE)]
    return _rows(Kind.OP, executions), _rows(Kind.PIPELINE, others)


def _nodes(events: Sequence[Event]) -> SpanRows:
    """Return rows of nodes; the id of each is its place among all events, from 1."""
    places = [place for place, event in enumerate(events, 1) if event.is_node]
    nodes = [events[place - 1] for place in places]
    node = [event.name.removesuffix(NODE) for event in nodes]
    columns = {
        "id": places,
        "name": [event.text("op_name") or name for event, name in zip(nodes, node, strict=True)],
        "attr.node": node,
        "attr.execution_provider": [event.text("provider") for event in nodes],
        **_tensors("input", [event.args.get("input_type_shape") for event in nodes]),
        **_tensors("output", [event.args.get("output_type_shape") for event in nodes]),
    }
    for column, name in _SIZES.items():
        columns[column] = pl.Series([event.number(name) for event in nodes], dtype=pl.Int64)
    return _rows(Kind.OP, nodes, columns)


def _tensors(side: str, told: Sequence[Any]) -> dict[str, pl.Series]:
    """Return columns of shapes and element types, told as `[{"float": [4, 16]}]`."""
    pairs: list[list[tuple[str, Any]] | None] = [
        [pair for tensor in tensors if isinstance(tensor, dict) for pair in tensor.items()]
        if isinstance(tensors, list)
        else None
        for tensors in told
    ]
    shapes = [None if each is None else [_shape(shape) for _, shape in each] for each in pairs]
    dtypes = [
        None if each is None else [_DTYPES.get(name, name) for name, _ in each] for each in pairs
    ]
    return {
        f"attr.{side}_shapes": pl.Series(shapes, dtype=pl.List(pl.List(pl.Int64))),
        f"attr.{side}_dtypes": pl.Series(dtypes, dtype=pl.List(pl.String)),
    }


def _shape(told: Any) -> list[int]:
    sizes = told if isinstance(told, list) else []
    return [size for size in sizes if isinstance(size, int) and abs(size) < 1 << 62]


def _calls(events: Sequence[Event]) -> SpanRows:
    """Return rows of calls of the device's runtime."""
    return _rows(Kind.LAUNCH, [event for event in events if event.category == "Api"])


def _device(events: Sequence[Event]) -> tuple[SpanRows, SpanRows]:
    """Return rows of kernels and of copies, each in the node that launched it."""
    nodes = _launching_nodes(events)
    kernels = [place for place in nodes if not _COPY.fullmatch(events[place].name)]
    copies = [(place, m) for place in nodes if (m := _COPY.fullmatch(events[place].name))]
    full = [full_name(events[place].name) for place in kernels]
    kernel = {
        "name": [short_name(name) for name in full],
        "attr.full_name": full,
        "attr.grid": _sizes(events, kernels, "grid"),
        "attr.block": _sizes(events, kernels, "block"),
    }
    copy = {
        "name": "memcpy",
        "attr.direction": [f"{match[1][0]}to{match[2][0]}" for _, match in copies],
    }
    return (
        _on_device(Kind.KERNEL, events, {place: nodes[place] for place in kernels}, kernel),
        _on_device(Kind.MEMCPY, events, {place: nodes[place] for place, _ in copies}, copy),
    )


def _on_device(
    kind: Kind, events: Sequence[Event], nodes: Mapping[int, int | None], columns: Mapping[str, Any]
) -> SpanRows:
    own = [events[place] for place in nodes]
    placed = {
        "thread": None,
        "device": 0,
        "stream": pl.Series([event.number("stream") for event in own], dtype=pl.Int64),
        "parent_id": pl.Series(list(nodes.values()), dtype=pl.Int64),
    }
    return _rows(kind, own, {**placed, **columns})


def _sizes(events: Sequence[Event], places: Sequence[int], name: str) -> pl.Series:
    told = [[events[place].number(f"{name}_{axis}") for axis in "xyz"] for place in places]
    known = [sizes if None not in sizes else None for sizes in told]
    return pl.Series(known, dtype=pl.List(pl.Int64))


def _launching_nodes(events: Sequence[Event]) -> dict[int, int | None]:
    """Return the id of the node that launched each kernel, by the kernel's place.

    Kernels are written next to their node: those that name it behind it, those of earlier
    versions, which tell its operator alone, on either side.
    """
    found: dict[int, int | None] = {}
    waiting: list[int] = []
    before: int | None = None
    for place, event in enumerate(events):
        if event.is_on_device:
            found[place] = before if _launched(event, events, before) else None
            waiting += [place] if found[place] is None else []
            continue
        before = place + 1
        found |= {each: before for each in waiting if _launched(events[each], events, before)}
        waiting = []
    return found


def _launched(kernel: Event, events: Sequence[Event], node: int | None) -> bool:
    """Tell whether a kernel says that it is of the node with an id."""
    if node is None or not events[node - 1].is_node:
        return False
    by_name = kernel.text("parent_name")
    if by_name:
        return by_name == events[node - 1].name
    op = kernel.text("op_name")
    return op is not None and op == events[node - 1].text("op_name")


def _rows(
    kind: Kind, events: Sequence[Event], columns: Mapping[str, Any] | None = None
) -> SpanRows:
    if not events:
        return no_rows()
    own = {
        "kind": kind.value,
        "name": [event.name for event in events],
        "start_ns": [event.start for event in events],
        "end_ns": [event.end for event in events],
        "thread": [event.thread for event in events],
    }
    return span_rows({**own, **(columns or {})})


def _damage(profile: Profile) -> Iterator[Problem]:
    if not profile.whole:
        yield Problem("cut-short", "the file ends in the middle: what is whole of it is here")
    if profile.damaged:
        events = counted(profile.damaged, "event")
        yield Problem("damaged-times", f"left out: {events} without proper times")


def _left_out(events: Sequence[Event], runs: Sequence[Event]) -> Iterator[Problem]:
    """Yield what is not among the rows, by name."""
    fences = [event for event in events if event.category == "Node" and not event.is_node]
    if fences:
        took = duration(sum(event.end - event.start for event in fences))
        yield Problem(
            "fences", f"left out: {counted(len(fences), 'fence')} of nodes, {took} in all"
        )
    unknown = [event for event in events if event.category not in _CATEGORIES]
    if unknown:
        yield Problem("unknown-events", f"left out, for xsp does not know them: {_listed(unknown)}")
    if not runs and any(event.name == _RUN for event in events):
        yield Problem(
            "runs-at-once",
            "several threads ran the session at once: the whole recording is one evaluation",
        )
    session = [event for event in events if event.category == "Session" and event.name != _RUN]
    outside = [event for event in session if runs and _is_outside(event, runs)]
    if outside:
        yield Problem("outside-of-runs", f"left out, for no run is around it: {_listed(outside)}")


def _listed(events: Sequence[Event]) -> str:
    """Return names with counts and times, those that took longest first."""
    counts, times = Counter[str](), Counter[str]()
    for event in events:
        name = shorten(event.name, _NAME)
        counts[name] += 1
        times[name] += event.end - event.start
    told = [
        f"{counts[name]:,} \u00d7 {name} ({duration(took)})" for name, took in times.most_common()
    ]
    more = len(told) - _MOST_NAMES
    return ", ".join(told[:_MOST_NAMES]) + (
        f" and {counted(more, 'more name')}" if more > 0 else ""
    )
