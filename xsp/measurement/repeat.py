"""Repetition: a plan and a call in, the call made as often as the plan wants it out.

Also what stands against repeating a call: generators, iterators that are used up, inputs
that the call writes to.
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


def carry_out(plan: Plan, session: Session, call: ModelCall, tell: Progress) -> None:
    """Make the call as often as the plan wants it; its exceptions pass through."""
    inputs: Inputs | None = Inputs(session.watchers, call)
    _check_iterators(session, call)
    while (step := plan.next()) is not None:
        before = session.clock.now()
        latencies = session.visit(step, call)
        plan.record(step, latencies, spent_ns=session.clock.now() - before)
        if inputs is not None:
            _check_arguments(session, call, inputs)
            inputs = None
        try:
            tell(plan.fraction)
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
        TypeError: It is no function, or a call of it only makes a coroutine or generator.
    """
    if not callable(function):
        raise TypeError(f"{function!r} cannot be called: give a model or a function")
    if inspect.iscoroutinefunction(_called(function)):
        raise TypeError(
            f"a call of the coroutine function {_name(function)} does nothing until it is "
            "awaited: measure a function that runs it, such as lambda: asyncio.run(...)"
        )
    check_no_generator(function)


def check_no_generator(function: Callable[..., Any]) -> None:
    """Verify that a function does its work before it returns.

    Raises:
        TypeError: A call of it only makes a generator.
    """
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"a call of the generator function {_name(function)} does nothing until it is "
            "iterated over: use a function that does so, or mark what counts with "
            "`with prof.evaluation():`"
        )


class Inputs:
    """The arguments of a call, which may be other ones after it.

    Args:
        watchers: They know what tensors are.
        call: The call, not yet made.

    Attributes:
        unread: What kept them from being looked at; empty if nothing did.
    """

    def __init__(self, watchers: Sequence[Watcher], call: ModelCall) -> None:
        self._watchers = watchers
        self._call = call
        self._before, self.unread = looked_at(self._versions)

    def changed(self) -> bool:
        """Return whether the call has written to them since; False if that cannot be told."""
        after, unread = looked_at(self._versions)
        self.unread = self.unread or unread
        return not self.unread and self._before != after

    def _versions(self) -> list[tuple[int, ...]]:
        return [watcher.versions(self._call) for watcher in self._watchers]


def looked_at(look: Callable[[], T]) -> tuple[T | None, str]:
    """Return what `look` says of a call's arguments, and what kept it from saying so.

    >>> looked_at(lambda: 1), looked_at(lambda: [][0])
    ((1, ''), (None, 'looking at its arguments raised IndexError: list index out of range'))
    """
    try:
        return look(), ""
    except Exception as error:  # noqa: BLE001  they are the user's own objects, and may raise anything
        return None, f"looking at its arguments raised {type(error).__name__}: {error}"


def used_up(call: ModelCall) -> str | None:
    """Return the type of the first iterator that a call is given, or None.

    >>> used_up(ModelCall(sum, (iter([1, 2]),))), used_up(ModelCall(sum, ([1, 2],)))
    ('list_iterator', None)
    """
    partial = call.function if isinstance(call.function, functools.partial) else None
    bound = (partial.args, partial.keywords) if partial is not None else ()
    found = next(_iterators((bound, call.args, call.kwargs)), None)
    return None if found is None else type(found).__name__


def _iterators(value: Any) -> Iterator[Any]:
    if isinstance(value, Iterator):
        yield value
    elif isinstance(value, Mapping):
        yield from _iterators(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _iterators(item)


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a call runs in the end: the function of a partial, the method of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _check_iterators(session: Session, call: ModelCall) -> None:
    iterator, _ = looked_at(lambda: used_up(call))
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
