"""Repetition: a plan and a call in, the visits of the call in the session out.

Also the checks of what stands against repeating a call: generator functions, iterators that
are used up, changes that cannot be put back.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from xsp.measurement.progress import Enough, Progress
from xsp.measurement.state import State
from xsp.provider import ModelCall
from xsp.session import Plan, Session

T = TypeVar("T")


def carry_out(
    plan: Plan, session: Session, call: ModelCall, report: Progress, *, insist: bool = False
) -> str:
    """Make the call until the plan is complete; exceptions of the call pass through.

    What the call changes of its arguments and of its model is put back before each evaluation,
    and at the end, as are random numbers. A call that changes what cannot be put back is not
    repeated.

    Args:
        plan: Says which visits are made.
        session: Makes them.
        call: The call.
        report: Is told how much is done.
        insist: Whether to repeat a call even if what it changes cannot be put back.

    Returns:
        What was put back before each evaluation, for people; empty if nothing was.
    """
    _check_iterators(session, call)
    with State(session.keepers, call) as state:
        complete = _repeat(plan, session, call, report, state, insist)
    _note_unread(session, call, state)
    _note_changes(session, call, state, stopped=not complete)
    if complete and plan.fell_short:
        session.problem(
            "budget-ended",
            f"the time budget of {plan.settings.budget_s:g} s ended before there were "
            f"{plan.settings.runs} evaluations on every rung; a larger budget= would allow them",
        )
    return state.changes


def irreversible(session: Session, call: ModelCall) -> str:
    """Return which arguments could not be put back if the call changed them; empty if none."""
    return State(session.keepers, call).unsafe


def check_function(function: Callable[..., Any]) -> None:
    """Verify that calling a function does its work.

    Raises:
        TypeError: It cannot be called, or a call only makes a coroutine or a generator.
    """
    if not callable(function):
        raise TypeError(f"{function!r} cannot be called: give a model or a function")
    if inspect.iscoroutinefunction(_called(function)):
        raise TypeError(
            f"a call of the coroutine function {name_of(function)} does nothing until it is "
            "awaited: measure a function that runs it, such as lambda: asyncio.run(...)"
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
            f"a call of the generator function {name_of(function)} does nothing until it is "
            "iterated over: use a function that does so, or mark what counts with "
            "`with prof.evaluation():`"
        )


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the function that an object wraps, or of its class."""
    function = _without_partial(function)
    while not _is_named(function) and hasattr(function, "__wrapped__"):
        function = _without_partial(function.__wrapped__)
    return str(function.__name__ if _is_named(function) else type(function).__name__)


def read_arguments(look: Callable[[], T]) -> tuple[T | None, str]:
    """Return what `look` returns of a call's arguments, and why it could not.

    >>> read_arguments(lambda: 1), read_arguments(lambda: [][0])
    ((1, ''), (None, 'looking at its arguments raised IndexError: list index out of range'))
    """
    try:
        return look(), ""
    except Exception as error:  # noqa: BLE001  the user's own objects may raise anything
        return None, f"looking at its arguments raised {type(error).__name__}: {error}"


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


def _check_iterators(session: Session, call: ModelCall) -> None:
    iterator, _ = read_arguments(lambda: iterator_type(call))
    if iterator is not None:
        session.problem(
            "input-used-up",
            f"{call.subject} is given an iterator ({iterator}): each evaluation goes on where the "
            "one before ended, and after its end there is nothing left. Give a list, or measure a "
            "function that makes a new iterator",
        )


def _repeat(
    plan: Plan, session: Session, call: ModelCall, report: Progress, state: State, insist: bool
) -> bool:
    """Make the visits of a plan, and return False if what a call changes ended them."""
    while (step := plan.next()) is not None:
        if step.evaluations + step.untimed > 1:
            _rehearse(call, state)
        if state.stuck and not insist:
            return False
        began_ns = session.clock.now()
        latencies = session.visit(step, call, state.prepare)
        plan.record(step, latencies, began_ns=began_ns, ended_ns=session.clock.now())
        if latencies and not state.known:  # else profilers were armed, and nothing was called
            state.look()
        if state.changes:  # so that a call made before saw others than the next ones do
            session.take(None)
        try:
            # After the visit is recorded: `Enough` must not lose the visit.
            report(plan.fraction)
        except Enough:
            return True
    return True


def _rehearse(call: ModelCall, state: State) -> None:
    """Find out what the call changes, before it is made several times in a row."""
    while not state.known and not state.stuck:
        state.put_back()
        call()
        state.look()


def _note_unread(session: Session, call: ModelCall, state: State) -> None:
    if state.unread:
        session.problem(
            "input-unread",
            f"whether {call.subject} changes its input or its model, so that later evaluations "
            f"saw others, cannot be told of all of it: {state.unread}",
        )


def _note_changes(session: Session, call: ModelCall, state: State, *, stopped: bool) -> None:
    if state.stuck:
        end = (
            "so it was not repeated any further, and latencies rest on what was done until then"
            if stopped
            else "so later evaluations saw other values"
        )
        session.problem(
            "input-written",
            f"{call.subject} changes {state.stuck}, and cannot be put back, {end}. Measure a "
            "function that makes it anew",
        )
    if state.trained:
        session.problem(
            "parameters-written",
            f"{call.subject} trains: it changes parameters ({state.trained} and others), which are "
            "not put back. Give it a copy of the model, if the model is needed as it was",
        )
