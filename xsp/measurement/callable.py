"""Measuring a callable: it is called again and again, rung by rung, in this process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xsp.evaluation import Rung
from xsp.level import LevelSet
from xsp.measurement.build import build_trace
from xsp.measurement.collection import Collected
from xsp.measurement.interpretation import interpret
from xsp.measurement.progress import Progress, progress_bar
from xsp.measurement.repeat import carry_out, check_function
from xsp.provider import ModelCall
from xsp.session import (
    Plan,
    Selection,
    Session,
    Settings,
    describe_environment,
    exclusively,
    select,
    settings_of,
)
from xsp.trace import Trace


def measure(
    function: Callable[..., Any],
    *args: Any,
    levels: LevelSet = 3,
    runs: int | None = None,
    budget: float | None = None,
    statistic: str = "trimmed",
    progress: bool | Progress | None = None,
    **kwargs: Any,
) -> Trace:
    """Call `function(*args, **kwargs)` again and again, and return its trace.

    Args:
        function: A model, or anything that calls one. It is called some hundred
            times, with the same arguments each time.
        args: Its arguments.
        levels: Levels to profile: a number or name (that and all above), or several.
        runs: Evaluations on each rung; by default as many as it takes until the
            model's latency is known to ±1 %.
        budget: Seconds after which to stop all the same; 20 by default.
        statistic: How runs are summarised: "trimmed" (20 % trimmed mean), "median",
            "mean" or "min".
        progress: Whether to show a progress bar, by default on a terminal; or a
            function that is told the fraction done (and may raise `xsp.Enough`).
        kwargs: Its keyword arguments.

    Raises:
        ValueError: A level is unknown, or a number out of range.
        TypeError: A call of `function` only makes a coroutine or a generator.
        MeasurementError: Another profile is running in this process.
    """
    settings = settings_of(levels, runs=runs, budget=budget, statistic=statistic)
    measured = visit_all(function, args, kwargs, settings=settings, progress=progress)
    return build_trace([collected_by(*measured)], settings)


def visit_all(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Settings,
    rungs: Sequence[str] | None = None,
    progress: bool | Progress | None = None,
) -> tuple[Session, Selection, str]:
    """Measure a callable in this process; return the session, what took part, and the subject.

    Nothing is interpreted yet.

    Args:
        function: What is called.
        args: Its arguments.
        kwargs: Its keyword arguments.
        settings: How to measure.
        rungs: Names of the rungs to run beside the bare one; None for all.
        progress: As for `measure`.

    Raises:
        ValueError: A rung is unknown.
        TypeError: A call of `function` only makes a coroutine or a generator.
        MeasurementError: Another profile is running in this process.
    """
    check_function(function)
    selection = select(settings.levels)
    chosen = _chosen(selection, rungs)
    session = Session(selection.providers, kinds=selection.kinds)
    call = _model_call(session, function, tuple(args), dict(kwargs or {}))
    title = f"measuring {call.subject}"
    with exclusively(title), progress_bar(progress, title) as tell:
        carry_out(Plan(chosen, settings, repeatable=True), session, call, tell)
    return session, selection, call.subject


def rung_names(settings: Settings) -> list[str]:
    """Return the names of the rungs that can be run here, without the bare one."""
    return [rung.name for rung in select(settings.levels).rungs if rung.kinds]


def collected_by(
    session: Session, selection: Selection, subject: str, *, serial: bool = False
) -> Collected:
    """Return what a session has collected, interpreted.

    Args:
        session: The session.
        selection: What took part.
        subject: What was measured, for people.
        serial: Whether the host waited for each kernel.
    """
    found = interpret(session.visits, session.providers, serial=serial)
    return Collected(
        runs=found.runs,
        problems=tuple(dict.fromkeys((*session.problems, *found.problems))),
        subject=subject,
        levels=selection.levels,
        environment=describe_environment(),
        origin=session.origin,
        counts=found.counts,
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return what to call a function or callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return str(function.__name__)
    return type(function).__name__


def _chosen(selection: Selection, names: Sequence[str] | None) -> tuple[Rung, ...]:
    if names is None:
        return selection.rungs
    known = {rung.name: rung for rung in selection.rungs}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no rung {unknown[0]!r} here; there are {', '.join(known)}")
    return tuple(rung for name, rung in known.items() if name in names or not rung.kinds)


def _model_call(
    session: Session, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ModelCall:
    for watcher in session.watchers:
        call = watcher.model_call(function, args, kwargs)
        if call is not None:
            return call
    name = name_of(function)
    return ModelCall(function, args, kwargs, name=name, subject=name, whole_model=False)
