"""Measures a function in this process by repeated calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xsp.level import LevelSet
from xsp.measuring.call.repeat import carry_out, check_function, name_of
from xsp.progress import Progress, progress_bar, status_line
from xsp.provider import ModelCall
from xsp.reading.monitor import monitoring_of
from xsp.reading.runs import ProcessRuns, build_trace, interpret
from xsp.record.session import (
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


def measure(  # noqa: PLR0913  # what `measure` takes is what its users choose
    function: Callable[..., Any],
    *args: Any,
    levels: LevelSet = 2,
    runs: int | None = None,
    budget: float | None = None,
    statistic: str = "trimmed",
    progress: bool | Progress | None = None,
    setup: Callable[[], Any] | None = None,
    monitor: bool | None = None,
    energy: bool = False,
    **kwargs: Any,
) -> Trace:
    """Call `function(*args, **kwargs)` some hundred times, and return its trace.

    Example:
        Measure one forward pass down to its operators::

            trace = xsp.measure(model, x)
            print(trace)

    Args:
        function: A model, or any function that calls one. As with `timeit`, changes last from
            call to call: a model that trains goes on training.
        args: Arguments of the function.
        levels: What to record, by default 2; as for `xsp.profile`.
        runs: Number of steps on each pass. None (default): as many as it takes to know the
            latency to ±1 %, for at least 3 seconds.
        budget: Seconds after which xsp stops, by default 20.
        statistic: Summary of the runs: "trimmed" (default: the mean of the middle 60 %),
            "median" or "mean".
        progress: Whether to show a progress bar on standard error; None (default): on a terminal
            a bar, else a line every ten seconds. Or a function that takes the fraction done and
            may raise `xsp.StopMeasurement`.
        setup: Function without arguments that xsp calls before each step, outside of the step's
            time. It returns the arguments of the call: a tuple, a dict of keyword arguments, or
            None for those given. By default none.
        monitor: Whether to read energy and utilization, in steps of their own. None (default): if
            there is a GPU, or an energy counter of the CPU; True: of the host in any case.
        energy: Read energy for 30 seconds, after 2 in which nothing runs. By default False.
        kwargs: Keyword arguments of the function.

    Returns:
        The trace of one step, with the latencies of the unprofiled program.

    Raises:
        ValueError: A level is unknown, or a number out of range.
        TypeError: `setup` returns something else, or a call of `function` only makes a coroutine
            or a generator.
        MeasurementError: Another profile is running in this process; or nothing here tells the
            energy or utilization asked for.
    """
    settings = settings_of(
        levels, runs=runs, budget=budget, statistic=statistic, monitor=monitor, energy=energy
    )
    visited = visit_all(function, args, kwargs, settings=settings, progress=progress, setup=setup)
    with status_line(progress, "making the trace"):
        return build_trace([interpret_session(*visited)], settings)


def visit_all(  # noqa: PLR0913  # those of `measure`, and what a process of a target knows
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Settings,
    progress: bool | Progress | None = None,
    turn: Callable[[Plan], None] | None = None,
    setup: Callable[[], Any] | None = None,
) -> tuple[Session, Selection, str]:
    """Call a function as often as its plan wants, and return the session that holds the visits.

    Nothing is interpreted yet: `interpret_session` takes what this function returns.

    Args:
        function: The function to call.
        args: Its arguments.
        kwargs: Its keyword arguments.
        settings: How to measure.
        progress: As for `measure`.
        turn: Called after each round with the plan; may change the plan's settings, and raise
            `xsp.StopMeasurement` to end the measurement early.
        setup: As for `measure`.

    Returns:
        The session, the providers and passes selected, and the name of the function for people.

    Raises:
        TypeError: A call of `function` only makes a coroutine or a generator.
        MeasurementError: Another profile is running in this process.
    """
    selection = select(
        settings.levels,
        operators=settings.operators,
        monitor=settings.monitor,
        energy=settings.energy,
    )
    session = Session(selection.providers, kinds=selection.kinds)
    given = tuple(args), dict(kwargs or {})
    call = _model_call(session, function, *(given if setup is None else _set_up(setup, *given)))
    title = f"measuring {call.subject}"
    with exclusively(title), progress_bar(progress, title) as report:
        plan = Plan(selection.passes, settings)
        if setup is None:
            carry_out(plan, session, call, report, turn=turn)
            return session, selection, call.subject

        def prepare() -> None:
            call.args, call.kwargs = _set_up(setup, *given)

        carry_out(plan, session, call, report, turn=turn, setup=prepare)
    return session, selection, call.subject


def _set_up(
    setup: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that `setup` makes, or those given if it makes none."""
    made = setup()
    if made is None:
        return args, kwargs
    if isinstance(made, tuple):
        return made, kwargs
    if isinstance(made, dict):
        return args, {**kwargs, **made}
    raise TypeError(
        f"setup= returned an unusable value ({type(made).__name__}). Return a tuple, a dict of "
        "keyword arguments or None."
    )


def interpret_session(
    session: Session, selection: Selection, subject: str, *, synchronous: bool = False
) -> ProcessRuns:
    """Return the runs that the visits of a session hold.

    Args:
        session: The session, after its last visit.
        selection: The providers and passes that were selected.
        subject: The name of the model or function, for people.
        synchronous: Whether the host waited for each kernel.
    """
    interpretation = interpret(
        session.visits,
        session.providers,
        inside_costs=session.inside_costs(),
        synchronous=synchronous,
    )
    return ProcessRuns(
        runs=interpretation.runs,
        # A provider may report the same warning in every visit.
        warnings=tuple(dict.fromkeys((*session.warnings, *interpretation.warnings))),
        subject=subject,
        levels=selection.levels,
        environment=describe_environment(),
        origin=session.origin,
        counts=interpretation.counts,
        monitoring=monitoring_of(session.monitored),
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
