"""Hooks on functions of all kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from xsp_levels.hook import Handler, Hook


def told(calls: list[Any]) -> Callable[[Callable[..., Any]], Handler]:
    def make(call: Callable[..., Any]) -> Handler:
        def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            calls.append((args, kwargs, sys._getframe(1).f_locals.keys()))
            return call(*args, **kwargs)

        return handler

    return make


@pytest.mark.parametrize("free", [0, 1, 12])
@pytest.mark.parametrize("generates", [False, True])
def test_a_function_with_variables_of_others_may_be_hooked_and_its_frames_looked_at(
    free: int, generates: bool
) -> None:
    names = [f"name_{number}" for number in range(free)]
    body = "    yield" if generates else "    return"
    source = f"def around({', '.join(names)}):\n  def function(x, *, y=2):\n"
    source += f"{body} [x, y, {', '.join(names)}]\n  return function"
    scope: dict[str, Any] = {}
    exec(source, scope)
    function = scope["around"](*range(free))
    original = function.__code__
    calls: list[Any] = []

    def results() -> list[Any]:
        return [
            list(each) if isinstance(each, Iterator) else [each] for each in (function(1, y=3),)
        ]

    expected = results()
    hook = Hook(function, told(calls))
    hook.place()
    assert results() == expected
    ((args, kwargs, variables),) = calls
    assert (args, kwargs) == ((1,), {"y": 3})
    assert {"args", "kwargs", "xsp_handler", *names} == set(variables)
    assert function.__code__.co_freevars == original.co_freevars
    hook.take_out()
    assert function.__code__ is original
    assert results() == expected
