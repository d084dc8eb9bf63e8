"""Repetition: a plan and a call in, the visits of the call in the session out.

Also the checks of what stands against repeating a call: generator functions, iterators that
are used up, inputs that the call writes to.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from xsp.measurement.progress import Enough, Progress
from xsp.provider import ModelCall, Watcher
from xsp.session import Plan, Session

T = TypeVar("T")


def carry_out(plan: Plan, session: Session, call: ModelCall, report: Progress) -> None:
    """Make the call until the plan is complete; exceptions of the call pass through."""
    # Compared after the first visit alone: a call that writes to its input does so at once.
    inputs: Inputs | None = Inputs(session.watchers, call)
    _check_iterators(session, call)
    while (step := plan.next()) is not None:
        began_ns = session.clock.now()
        latencies = session.visit(step, call)
        plan.record(step, latencies, began_ns=began_ns, ended_ns=session.clock.now())
        if inputs is not None:
            _check_arguments(session, call, inputs)
            inputs = None
        try:
            # After the visit is recorded: `Enough` must not lose the visit.
            report(plan.fraction)
        except Enough:
            return
    if plan.fell_short:
        session.problem(
            "budget-ended",
            f"the time budget of {plan.settings.budget_s:g} s ended before there were "
            f"{plan.settings.runs} evaluations on every rung; a larger budget= would allow them",
        )


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
    """Return the name of a function, or of the class of a callable object."""
    function = _without_partial(function)
    return str(function.__name__ if _is_named(function) else type(function).__name__)


class Inputs:
    """Versions of the tensors among a call's arguments, taken before the call.

    Args:
        watchers: Providers that know the framework's tensors.
        call: The call, not yet made.

    Attributes:
        unread: Why the versions could not be read; empty if they could.
    """

    def __init__(self, watchers: Sequence[Watcher], call: ModelCall) -> None:
        self._watchers = watchers
        self._call = call
        self._before, self.unread = read_arguments(self._versions)

    def changed(self) -> bool:
        """Return whether the call has written to its arguments; False if that is not known."""
        after, unread = read_arguments(self._versions)
        self.unread = self.unread or unread
        return not self.unread and self._before != after

    def _versions(self) -> list[tuple[int, ...]]:
        return [watcher.versions(self._call) for watcher in self._watchers]


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
    found = next(_iterators((bound, call.args, call.kwargs)), None)
    return None if found is None else type(found).__name__


def _iterators(value: Any) -> Iterator[Any]:
    # Other containers are not searched: a data set may take long to look through.
    if isinstance(value, Iterator):
        yield value
    elif isinstance(value, Mapping):
        yield from _iterators(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _iterators(item)


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a call runs: that of a partial, or an object's `__call__`."""
    function = _without_partial(function)
    return function if _is_named(function) else type(function).__call__


def _without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _is_named(function: Callable[..., Any]) -> bool:
    return inspect.isroutine(function) or inspect.isclass(function)


def _check_iterators(session: Session, call: ModelCall) -> None:
    iterator, _ = read_arguments(lambda: iterator_type(call))
    if iterator is not None:
        session.problem(
            "input-used-up",
            f"{call.subject} is given an iterator ({iterator}): each evaluation goes on where the "
            "one before ended, and after its end there is nothing left. Give a list, or measure a "
            "function that makes a new iterator",
        )


def _check_arguments(session: Session, call: ModelCall, inputs: Inputs) -> None:
    if inputs.changed():
        session.problem(
            "input-written",
            f"{call.subject} writes to its input: every evaluation after the first saw other "
            "values. Measure a function that copies the input first",
        )
    if inputs.unread:
        session.problem(
            "input-unread",
            f"whether {call.subject} writes to its input, so that later evaluations saw other "
            f"values, cannot be told: {inputs.unread}",
        )
