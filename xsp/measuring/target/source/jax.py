"""Compiles the function of a specification `jax:path.py:function` with jax.jit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from xsp.errors import UnknownTargetError
from xsp.measuring.target.source import function
from xsp.measuring.target.source.library import require
from xsp.measuring.target.spec import Spec, Subject


def prepare(spec: Spec) -> None:
    """Import JAX.

    Raises:
        MeasurementError: JAX is not installed.
    """
    require("jax", spec.target)


def check(spec: Spec) -> None:
    """Verify that there is a function, and that it takes its settings, without calling it.

    Raises:
        UnknownTargetError: There is no such function, or it does not take these settings.
        MeasurementError: JAX is not installed.
    """
    prepare(spec)
    _ = spec.runs_on
    function.subject(spec)


def subject(spec: Spec) -> Subject:
    """Return the function, compiled unless it is already.

    Raises:
        UnknownTargetError: There is no such function, it does not take these settings, or JAX
            cannot compile it.
    """
    found = function.subject(spec)
    bare: Any = found.function
    while isinstance(bare, functools.partial):
        bare = bare.func
    if spec.compiled is False or hasattr(bare, "lower"):  # of jax.jit, nnx.jit, equinox.filter_jit
        return found
    compiled, arrays = _compiled(found.function, spec)
    return replace(found, function=compiled, args=arrays)


def _compiled(
    function: Callable[..., Any], spec: Spec
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Compile a function without arguments, and return it with the arrays that it closes over.

    They become its arguments: with constants XLA would compute while it compiles.
    """
    import jax  # noqa: PLC0415

    try:
        closed = jax.make_jaxpr(function)()
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TypeError) as error:
        why = str(error).partition("\n")[0]
        raise UnknownTargetError(
            f"{spec.target} cannot be compiled by jax.jit ({type(error).__name__}: {why}): "
            "compile the part of it that can be, and measure path.py:function, which is called "
            "as it is"
        ) from error

    def compiled(*arrays: Any) -> Any:
        return jax.core.eval_jaxpr(closed.jaxpr, arrays)

    compiled.__name__ = spec.name.rpartition(".")[2]
    return jax.jit(compiled), tuple(closed.consts)
