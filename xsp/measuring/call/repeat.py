"""Repetition: makes a call as often as a plan wants, and says what stands against that.

A call is made again and again with the same arguments, as `timeit` does: nothing that it changes is
undone. `setup` gives each call arguments of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from xsp.errors import guarded
from xsp.measuring.call.content import Contents, arguments_of
from xsp.progress import Progress, StopMeasurement
from xsp.provider import ModelCall
from xsp.record.session import Plan, Session

T = TypeVar("T")
_SETUP = "Use `xsp.measure(..., setup=function)` to make new arguments for each call"


def carry_out(
    plan: Plan,
    session: Session,
    call: ModelCall,
    report: Progress,
    *,
    turn: Callable[[Plan], None] | None = None,
    setup: Callable[[], object] | None = None,
) -> None:
    """Make the call until the plan is complete; exceptions of the call pass through.

    Args:
        plan: Says which visits are made.
        session: Makes them.
        call: The call.
        report: Is told how much is done.
        turn: Called after each round with the plan; what it takes is nobody's time.
        setup: Called before each step, outside of what is timed.
    """
    given = None
    if setup is None:
        iterator, _ = read_arguments(lambda: iterator_type(call))
        if iterator is not None:
            session.warning(
                "input-used-up",
                f"{call.subject} consumes an iterator ({iterator}), so later steps get other or no "
                f"data. Give a list. {_SETUP}.",
            )
        given = Contents(arguments_of(call), session.fingerprinting)
    try:
        while (step := plan.next()) is not None:
            began_ns = session.clock.now()
            latencies = session.visit(step, call, setup)
            plan.record(step, latencies, began_ns=began_ns, ended_ns=session.clock.now())
            if given is not None and latencies:
                changes = given.changes(Contents(arguments_of(call), session.fingerprinting))
                if changes:
                    session.warning(
                        "input-written",
                        f"{call.subject} changes its arguments ({changes}), so each call started "
                        f"from what the last one left. {_SETUP}.",
                    )
                given = None
            try:
                report(
                    plan.fraction
                )  # after the visit is recorded: `StopMeasurement` must not lose it
                following = plan.next()
                over = following is None or following.round != step.round
                if turn is not None and over and not step.pause_until_ns:
                    turn(plan)
            except StopMeasurement:
                return
    except Exception as error:
        if setup is None and any(visit.windows for visit in session.visits):
            error.add_note(
                f"{call.subject} raised this when it was called again with the same arguments. If "
                f"a call uses up or changes what it is given: {_SETUP}."
            )
        raise
    if plan.fell_short:
        session.warning(
            "budget-ended",
            f"the budget of {plan.settings.budget_s:g} s ended before each pass had "
            f"{plan.settings.runs} steps, so error bars are wider. Use a larger budget.",
        )


def check_function(function: Callable[..., Any]) -> None:
    """Verify that calling a function does its work.

    Raises:
        TypeError: It cannot be called, or a call only makes a coroutine or a generator.
    """
    if not callable(function):
        raise TypeError(f"This cannot be called ({function!r}). Give a model or a function.")
    if inspect.iscoroutinefunction(_called(function)):
        raise TypeError(
            f"A call of a coroutine function does nothing until it is awaited "
            f"({name_of(function)}). Measure lambda: asyncio.run(...)."
        )
    check_no_generator(function)


def check_no_generator(function: Callable[..., Any]) -> None:
    """Verify that a function does its work before it returns.

    Raises:
        TypeError: A call of the function only makes a generator.
    """
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"A call of a generator function does nothing until you iterate "
            f"({name_of(function)}). Measure a function that does, or use `with prof.step():`."
        )


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the function that an object wraps, or of its class."""
    function = _without_partial(function)
    while not _is_named(function) and hasattr(function, "__wrapped__"):
        function = _without_partial(function.__wrapped__)
    return str(function.__name__ if _is_named(function) else type(function).__name__)


def read_arguments(look: Callable[[], T]) -> tuple[T | None, str]:
    """Look at a call's arguments; if that fails, say why.

    >>> read_arguments(lambda: 1), read_arguments(lambda: [][0])
    ((1, ''), (None, 'looking at its arguments raised IndexError: list index out of range'))
    """
    failed = "looking at its arguments raised"
    return guarded(
        lambda: (look(), ""), lambda error: (None, f"{failed} {type(error).__name__}: {error}")
    )


def iterator_type(call: ModelCall) -> str | None:
    """Return the type of the first iterator among a call's arguments, or None.

    >>> iterator_type(ModelCall(sum, (iter([1, 2]),))), iterator_type(ModelCall(sum, ([1, 2],)))
    ('list_iterator', None)
    """
    partial = call.function if isinstance(call.function, functools.partial) else None
    bound = (partial.args, partial.keywords) if partial is not None else ()
    found = next(_iterators((bound, call.args, call.kwargs), set()), None)
    return None if found is None else type(found).__name__


def _iterators(value: Any, seen: set[int]) -> Iterator[Any]:
    # Other containers are not searched: a data set may take long to look through.
    if isinstance(value, Iterator):
        yield value
    elif isinstance(value, (Mapping, tuple, list)) and id(value) not in seen:
        seen.add(id(value))
        for item in tuple(value.values()) if isinstance(value, Mapping) else value:
            yield from _iterators(item, seen)


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a call runs: that of a partial, or an object's `__call__`."""
    function = _without_partial(function)
    return function if _is_named(function) else type(function).__call__


def _without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _is_named(function: Callable[..., Any]) -> bool:
    # Objects that become methods of their class, too, need not have names.
    routine = inspect.isroutine(function) or inspect.isclass(function)
    return routine and hasattr(function, "__name__")
