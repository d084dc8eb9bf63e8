"""Repeating a call after a block that made hardly any: only where nobody can notice.

A program runs exactly as often as it was written. A block of three calls or fewer is the exception,
for `with xsp.profile(): model(x)` would say next to nothing: its call is repeated as `xsp.measure`
does, if two rehearsals change nothing that can be reached, and print nothing. Rehearsed is a copy:
a cache that the program goes on with must not hold a token that it did not ask for.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xsp.errors import guarded
from xsp.measuring.call import Contents, arguments_of, carry_out, iterator_type, read_arguments
from xsp.progress import Progress, progress_bar
from xsp.provider import ModelCall, State
from xsp.reading.runs import ProcessRuns, build_trace, interpret
from xsp.record.program import Recorder
from xsp.record.rank import identity, in_process_group
from xsp.record.session import Plan, Selection, Session, Settings, describe_environment, observers
from xsp.trace import Trace

MOST_OBJECTS = 50_000  # of a call's arguments and model that are copied: a second
MOST_CALLS = 3  # of a block, up to which one is repeated unasked
BUDGET_S = 3.0  # people wait meanwhile
_REHEARSALS = 2  # the first one may only make ready, or the second one only
_SEVERAL = "several threads called models, which a repetition on one thread would not show"
_IN_COMPANY = "this is a rank of a distributed program, and the others would have to repeat theirs"
_OBSERVED = "what else watches the process ({}) would record repetitions as the program's calls"
_CHANGES = (
    "a rehearsal changed {}. xsp.measure(function, setup=make_arguments) measures calls that "
    "change what they are given; repeat=True repeats them all the same"
)
_PRINTS = "it writes to standard output"


@dataclass(frozen=True, slots=True)
class Repeated:
    """Outcome of repeating a call.

    Attributes:
        traces: The exact trace of each call that was repeated, by the number of its facts.
        hinder: Why others were not.
    """

    traces: Mapping[int, Trace]
    hinder: Mapping[int, str]


def repeat_calls(
    recorder: Recorder,
    selection: Selection,
    settings: Settings,
    *,
    wanted: bool | None,
    progress: bool | Progress | None,
) -> Repeated:
    """Repeat the last call of each kind of a block, if it made hardly any, or if that is wanted.

    Args:
        recorder: The recorder, whose block has ended.
        selection: What is recorded.
        settings: How the block was to be measured.
        wanted: Whether to repeat; None: where nobody can notice.
        progress: As for `xsp.profile`.
    """
    kept = recorder.kept_calls()
    # Where hooks were out, the block may have made more calls than were seen.
    few = recorder.log.made <= MOST_CALLS and not recorder.was_out
    if wanted is False or not kept or (wanted is None and not few):
        return Repeated({}, {})
    traces: dict[int, Trace] = {}
    hinder: dict[int, str] = {}
    one = replace(settings, budget_s=BUDGET_S / len(kept))
    for number, call in kept.items():
        reason = None if wanted else _hazard(recorder, call)
        if reason is None:
            made = _repeat(recorder, selection, one, call, progress, insist=bool(wanted))
            if isinstance(made, Trace):
                traces[number] = made
            else:
                reason = made
        if reason is not None:
            hinder[number] = reason
    return Repeated(traces, hinder)


def _hazard(recorder: Recorder, call: ModelCall) -> str | None:
    """Return why a call must not be repeated unasked, None if it may be tried."""
    if not recorder.log.one_thread:
        return _SEVERAL
    if identity() is not None or in_process_group():
        return _IN_COMPANY
    if watching := (*observers(), *_profilers()):
        return _OBSERVED.format(", ".join(watching))
    danger, unread = read_arguments(lambda: _danger(call))
    return unread or danger


def _danger(call: ModelCall) -> str | None:
    if iterator_type(call) is not None:
        return f"{call.subject} was given an iterator, which is used up"
    return call.hazard()


def _profilers() -> Iterator[str]:
    """Yield what records calls of a framework, as profilers and instrumentation do."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.autograd._profiler_enabled():
        yield "torch.profiler"
    traced = sys.modules.get("tensorflow.python.profiler.profiler_v2")
    if getattr(traced, "_profiler", None) is not None:
        yield "TensorFlow's profiler"
    jax = sys.modules.get("jax._src.profiler")
    if getattr(getattr(jax, "_profile_state", None), "profile_session", None) is not None:
        yield "JAX's profiler"
    if any(name.startswith("opentelemetry.instrumentation.") for name in sys.modules):
        yield "OpenTelemetry's instrumentation"
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None:
        yield from filter(None, (monitoring.get_tool(number) for number in range(6)))


def _repeat(
    recorder: Recorder,
    selection: Selection,
    settings: Settings,
    call: ModelCall,
    progress: bool | Progress | None,
    *,
    insist: bool,
) -> Trace | str:
    """Return the trace of a call by repetitions, or why it could not be repeated."""
    session = Session(selection.providers, kinds=selection.kinds)
    try:
        with call.conditions():
            if not insist:
                with _output() as written:
                    hindered = _rehearse(session, call)
                if hindered:
                    return hindered
                if written():
                    return _PRINTS
            # Energy is that of the block: it needs seconds, and repeats last three at most.
            plan = Plan([each for each in selection.passes if not each.monitored], settings)
            with progress_bar(progress, f"repeating {call.subject}") as report:
                carry_out(plan, session, call, report)
    except Exception as error:  # noqa: BLE001  # the user's own call had succeeded
        return f"repeating it raised {type(error).__name__}: {error}"
    found = interpret(session.visits, session.providers, inside_costs=session.inside_costs())
    runs = ProcessRuns(
        runs=found.runs,
        warnings=tuple(dict.fromkeys((*session.warnings, *found.warnings))),
        subject=call.subject,
        levels=selection.levels,
        environment=describe_environment(),
        origin=recorder.session.origin,
        counts=found.counts,
    )
    return build_trace([runs], settings)


def _rehearse(session: Session, call: ModelCall) -> str:
    """Return why a call must not be repeated, by two rehearsals of a copy; empty if it may be.

    What the copy shares with the program, such as random numbers (`State`), is left as it was.
    """
    copy = guarded(
        lambda: call.copied(_Memo()),
        lambda error: f"what it may change cannot be copied ({type(error).__name__}: {error})",
    )
    if isinstance(copy, str):
        return copy

    def contents() -> Contents:
        reached = [*arguments_of(copy), ("the model", copy.model())]
        return Contents([*reached, *((state.name, state.read()) for state in states)], known)

    known = session.fingerprinting
    states = [
        State("random numbers", random.getstate, random.setstate),
        State("random numbers", np.random.get_state, np.random.set_state),
        *call.states(),
    ]
    values, before = [state.read() for state in states], contents()
    try:
        for _ in range(_REHEARSALS):
            copy()
        after = contents()
    finally:
        for state, value in zip(states, values, strict=True):
            state.write(value)
    if unread := before.unread or after.unread:
        return f"what it may change is not known: {unread}"
    changes = before.changes(after)
    return _CHANGES.format(changes) if changes else ""


class _Memo(dict[int, Any]):
    """Memo of `copy.deepcopy` that stops the copy at a number of objects."""

    def __setitem__(self, key: int, value: Any) -> None:
        if len(self) > MOST_OBJECTS:
            raise ValueError(f"more than {MOST_OBJECTS:,} objects")
        super().__setitem__(key, value)


@contextlib.contextmanager
def _output() -> Iterator[Any]:
    """Yield what tells whether anything was written to standard output in the block.

    What Python writes is counted and goes nowhere: it is a rehearsal's. What libraries write below
    Python moves the file's position, where standard output is a file.
    """
    before, stream = _position(), sys.stdout
    swallowed = io.StringIO()
    sys.stdout = swallowed
    try:
        yield lambda: bool(swallowed.getvalue()) or _position() != before
    finally:
        if sys.stdout is swallowed:
            sys.stdout = stream


def _position() -> int | None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        return os.lseek(1, 0, os.SEEK_CUR)
    except (OSError, ValueError):
        return None
