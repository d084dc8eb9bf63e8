from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from xsp.measurement.repeat import check_function, check_no_generator, iterator_type, name_of
from xsp.provider.watching import ModelCall


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


class Generating:
    def __call__(self) -> Iterator[int]:
        yield 1

    def each(self) -> Iterator[int]:
        yield 1


class Bindable:
    """An object that becomes a method in a class, and has no name: TensorFlow's functions, say."""

    def __call__(self) -> None: ...

    def __get__(self, instance: object, owner: type | None = None) -> Bindable:
        return self


class Wrapping(Bindable):
    def __init__(self, wrapped: object) -> None:
        self.__wrapped__ = wrapped


class Awaited:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (coroutine, "coroutine function coroutine"),
        (functools.partial(coroutine), "coroutine function"),
        (generator, "generator function generator"),
        (asynchronous_generator, "generator function asynchronous_generator"),
        (functools.partial(functools.partial(generator)), "generator function generator"),
        (Generating(), "generator function Generating"),
        (functools.partial(Generating()), "generator function Generating"),
        (Generating().each, "generator function each"),
        (Awaited(), "coroutine function Awaited"),
        (3, "3 cannot be called"),
    ],
)
def test_what_does_nothing_when_called_is_refused(function: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        check_function(function)  # type: ignore[arg-type]


def test_functions_are_not_refused() -> None:
    check_function(print)
    check_function(functools.partial(print, 1))
    check_no_generator(coroutine)


def test_an_iterator_is_found_wherever_it_is_given() -> None:
    assert iterator_type(ModelCall(sum, ([1, 2], {"a": (1,)}))) is None
    assert iterator_type(ModelCall(sum, (generator(),))) == "generator"
    assert iterator_type(ModelCall(sum, (), {"start": [zip([1], [2], strict=True)]})) == "zip"
    assert iterator_type(ModelCall(functools.partial(sum, iter([1])))) == "list_iterator"


def test_a_list_that_holds_itself_is_looked_through_once() -> None:
    endless: list[object] = []
    endless += [endless, [endless]]
    assert iterator_type(ModelCall(len, (endless,))) is None
    endless.append(generator())
    assert iterator_type(ModelCall(len, (endless,))) == "generator"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (print, "print"),
        (functools.partial(print, 1), "print"),
        (Bindable, "Bindable"),
        (Bindable(), "Bindable"),
        (Wrapping(print), "print"),
        (Wrapping(functools.partial(Wrapping(print))), "print"),
        (Wrapping(Bindable()), "Bindable"),
    ],
    ids=["function", "partial", "class", "object", "wrapper", "wrappers", "object wrapped"],
)
def test_whatever_can_be_called_has_a_name(function: Any, name: str) -> None:
    check_function(function)
    assert name_of(function) == name
