"""Awaiting: a function of JAX in, one that returns when its results are there out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one, and waits for the arrays that it returns.

    JAX returns arrays before they are computed. `__wrapped__` is the function that is called.
    """
    import jax  # noqa: PLC0415

    def call(*args: Any, **kwargs: Any) -> Any:
        return jax.block_until_ready(function(*args, **kwargs))

    # A model is no function, and has no name of its own.
    names = [name for name in functools.WRAPPER_ASSIGNMENTS if hasattr(function, name)]
    call.__name__ = type(function).__name__
    return functools.update_wrapper(call, function, assigned=names, updated=())
