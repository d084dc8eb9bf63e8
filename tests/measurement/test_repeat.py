from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator

import pytest

from xsp.measuring.call.repeat import check_function, iterator_type
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


class Awaited:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (coroutine, r"coroutine function .*\(coroutine\)"),
        (functools.partial(coroutine), "coroutine function"),
        (generator, r"generator function .*\(generator\)"),
        (asynchronous_generator, r"generator function .*\(asynchronous_generator\)"),
        (functools.partial(functools.partial(generator)), r"generator function .*\(generator\)"),
        (Generating(), r"generator function .*\(Generating\)"),
        (functools.partial(Generating()), r"generator function .*\(Generating\)"),
        (Generating().each, r"generator function .*\(each\)"),
        (Awaited(), r"coroutine function .*\(Awaited\)"),
        (3, r"cannot be called \(3\)"),
    ],
)
def test_what_does_nothing_when_called_is_refused(function: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        check_function(function)  # type: ignore[arg-type]


def test_an_iterator_is_found_wherever_it_is_given() -> None:
    assert iterator_type(ModelCall(sum, ([1, 2], {"a": (1,)}))) is None
    assert iterator_type(ModelCall(sum, (generator(),))) == "generator"
    assert iterator_type(ModelCall(sum, (), {"start": [zip([1], [2], strict=True)]})) == "zip"
    assert iterator_type(ModelCall(functools.partial(sum, iter([1])))) == "list_iterator"
