"""Reads the events of each visit from a profile that ONNX Runtime wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from xsp.errors import ProviderError
from xsp.onnxruntime_profile import NODE, RUN, US, Event, read_profile
from xsp_levels.framework.onnxruntime.layer import Layers
from xsp_levels.framework.onnxruntime.record import Integers, NodeEvents

MOST_EVENTS = 1_000_000  # that ONNX Runtime keeps; it drops what comes later


class Window(NamedTuple):
    """Begin and end of a visit, on the clock of the visit.

    Attributes:
        begin_ns: When it began.
        end_ns: When it ended.
        wall_ns: Wall-clock time minus the visit's clock.
        detail: Whether all that the profile says of events is kept.
    """

    begin_ns: int
    end_ns: int
    wall_ns: int
    detail: bool


def read_windows(
    content: bytes, began_ns: int, windows: Sequence[Window], model: str, layers: Layers
) -> Iterator[NodeEvents]:
    """Yield the events of each visit.

    Args:
        content: The profile.
        began_ns: When profiling began, wall-clock time.
        windows: The visits.
        model: Name of the model.
        layers: Its layers.

    Raises:
        ProviderError: ONNX Runtime has left out events, for there were too many.
    """
    events = read_profile(content).events
    if len(events) >= MOST_EVENTS:
        raise ProviderError(
            f"ONNX Runtime keeps {MOST_EVENTS:,} events of a session, and {model} had more. Make "
            "a step of fewer runs, or of fewer rounds of its loops."
        )
    nodes = [event for event in events if event.is_node]
    runs = [event for event in events if event.name == RUN]
    starts = np.array([event.start for event in nodes], np.int64) + began_ns
    for window in windows:
        began, ended = window.begin_ns + window.wall_ns - US, window.end_ns + window.wall_ns
        inside = np.flatnonzero((starts >= began) & (starts <= ended))
        chosen = [nodes[at] for at in inside.tolist()]
        yield _events(chosen, runs, began_ns - window.wall_ns, window.detail, model, layers)


def _events(
    nodes: Sequence[Event],
    runs: Sequence[Event],
    shift_ns: int,
    detail: bool,
    model: str,
    layers: Layers,
) -> NodeEvents:
    facts = [_facts(event) for event in nodes]
    numbers = {each: number for number, each in enumerate(dict.fromkeys(facts))}
    return NodeEvents(
        model,
        layers,
        tuple(numbers),
        node=np.array([numbers[each] for each in facts], np.int64),
        start_ns=np.array([event.start for event in nodes], np.int64) + shift_ns,
        duration_ns=np.array([event.end - event.start for event in nodes], np.int64),
        thread=np.array([event.thread for event in nodes], np.int64),
        run=_run_of_each(nodes, runs),
        arguments=tuple(msgspec.json.encode(event.args).decode() for event in nodes)
        if detail
        else (),
    )


def _facts(event: Event) -> tuple[str, str, str]:
    name = event.name.removesuffix(NODE)
    return name, event.text("op_name") or name, event.text("provider") or ""


def _run_of_each(nodes: Sequence[Event], runs: Sequence[Event]) -> Integers:
    """Return the number of the run that each node is of; that on its own thread comes first."""
    found = np.full(len(nodes), -1, np.int64)
    start = np.array([event.start for event in nodes], np.int64)
    thread = np.array([event.thread for event in nodes], np.int64)
    order = sorted(range(len(runs)), key=lambda at: runs[at].start)
    for own in (False, True):
        for each in np.unique(thread).tolist():
            chosen = [at for at in order if not own or runs[at].thread == each]
            mask = thread == each
            if chosen:
                found[mask] = _around(start[mask], [runs[at] for at in chosen], chosen, found[mask])
    return found


def _around(
    start: Integers, runs: Sequence[Event], numbers: Sequence[int], found: Integers
) -> Integers:
    """Return the number of the run around each time, and what was found before where none is."""
    at = np.searchsorted([run.start for run in runs], start, side="right") - 1
    ends = np.array([run.end for run in runs], np.int64)
    inside = (at >= 0) & (start <= ends[at])
    return np.where(inside, np.array(numbers, np.int64)[at], found)
