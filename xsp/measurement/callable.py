"""Measuring a callable: a function and its arguments in, its trace out, all in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xsp.evaluation import Rung
from xsp.level import LevelSet
from xsp.measurement.build import build_trace
from xsp.measurement.interpretation import interpret
from xsp.measurement.process_runs import ProcessRuns
from xsp.measurement.progress import Progress, progress_bar
from xsp.measurement.repeat import carry_out, check_function, name_of
from xsp.provider import ModelCall
from xsp.session import (
    Plan,
    Selection,
    Session,
    Settings,
    Visit,
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
            times, with the same arguments each time: what a call changes of them, and of
            the buffers and attributes of a model, is put back before the next one and at
            the end. Parameters are not, where it trains.
        args: Its arguments.
        levels: Levels to profile: a number or name (that and all above), or several.
        runs: Evaluations on each rung; by default as many as it takes, over 3 s at
            least, until the model's latency is known to ±1 %.
        budget: Seconds after which to stop, however well the latency is known; 20 by default.
        statistic: How runs are summarised: "trimmed" (20 % trimmed mean), "median",
            "mean" or "min".
        progress: Whether to show a progress bar, by default on a terminal; or a
            function that is called with the fraction done (and may raise `xsp.Enough`
            to end the measurement early).
        kwargs: Its keyword arguments.

    Raises:
        ValueError: A level is unknown, or a number out of range.
        TypeError: A call of `function` only makes a coroutine or a generator.
        MeasurementError: Another profile is running in this process.
    """
    settings = settings_of(levels, runs=runs, budget=budget, statistic=statistic)
    visited = visit_all(function, args, kwargs, settings=settings, progress=progress)
    return build_trace([interpret_session(*visited)], settings)


def visit_all(  # noqa: PLR0913  # those of `measure`, and what a process of a target knows
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Settings,
    rungs: Sequence[str] | None = None,
    progress: bool | Progress | None = None,
    trial: Visit | None = None,
) -> tuple[Session, Selection, str]:
    """Call a function as often as its plan wants, and return the session that holds the visits.

    Nothing is interpreted yet: `interpret_session` takes what this function returns.

    Args:
        function: The function to call.
        args: Its arguments.
        kwargs: Its keyword arguments.
        settings: How to measure.
        rungs: Names of the rungs to visit beside the bare rung; None for all.
        progress: As for `measure`.
        trial: A visit of the bare rung that was made before. It counts, unless the call changes
            something, which would not have been put back.

    Returns:
        The session, the providers and rungs selected, and the name of the function for people.

    Raises:
        ValueError: A rung is unknown.
        TypeError: A call of `function` only makes a coroutine or a generator.
        MeasurementError: Another profile is running in this process.
    """
    selection = select(settings.levels)
    chosen = _chosen(selection, rungs)
    session = Session(selection.providers, kinds=selection.kinds)
    session.take(trial)
    call = _model_call(session, function, tuple(args), dict(kwargs or {}))
    title = f"measuring {call.subject}"
    with exclusively(title), progress_bar(progress, title) as report:
        carry_out(Plan(chosen, settings, repeatable=True), session, call, report)
    return session, selection, call.subject


def rung_names(settings: Settings) -> list[str]:
    """Return the names of the rungs that this machine has providers for, but the bare rung.

    Rungs that give no latencies are visited together: the first of them stands for all.
    """
    rungs = [rung for rung in select(settings.levels).rungs if rung.kinds]
    untimed = [rung for rung in rungs if not rung.timed]
    return [rung.name for rung in rungs if rung not in untimed[1:]]


def interpret_session(
    session: Session, selection: Selection, subject: str, *, serial: bool = False
) -> ProcessRuns:
    """Return the runs that the visits of a session hold.

    Args:
        session: The session, after its last visit.
        selection: The providers and rungs that were selected.
        subject: The name of the model or function, for people.
        serial: Whether the host waited for each kernel.
    """
    interpretation = interpret(
        session.visits, session.providers, inside_costs=session.inside_costs(), serial=serial
    )
    return ProcessRuns(
        runs=interpretation.runs,
        # A provider may report the same problem in every visit.
        problems=tuple(dict.fromkeys((*session.problems, *interpretation.problems))),
        subject=subject,
        levels=selection.levels,
        environment=describe_environment(),
        origin=session.origin,
        counts=interpretation.counts,
    )


def _chosen(selection: Selection, names: Sequence[str] | None) -> tuple[Rung, ...]:
    if names is None:
        return selection.rungs
    known = {rung.name: rung for rung in selection.rungs}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no rung {unknown[0]!r} here; there are {', '.join(known)}")
    untimed = any(not known[name].timed for name in names)
    # The bare rung is always visited: all overhead is measured against it.
    return tuple(
        rung
        for name, rung in known.items()
        if name in names or not rung.kinds or (untimed and not rung.timed)
    )


def _model_call(
    session: Session, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ModelCall:
    # A watcher knows its framework's models: how to name and how to repeat their calls.
    calls = (watcher.model_call(function, args, kwargs) for watcher in session.watchers)
    call = next((call for call in calls if call is not None), None)
    if call is None or callable(function):  # some models cannot be called, but know how they run
        check_function(function)
    if call is not None:
        return call
    name = name_of(function)
    return ModelCall(function, args, kwargs, name=name, subject=name, whole_model=False)
