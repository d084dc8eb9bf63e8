"""Runs of sessions: their names, their inputs, and whether they can be repeated."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xsp.provider import Inputs, ModelCall
from xsp_levels.framework.onnxruntime.model import model_name

BOUND = "run_with_iobinding"
RUNS = ("run", "run_with_ort_values", BOUND, "run_with_ortvaluevector")
_WRITES = (BOUND, "run_with_ortvaluevector")
Again = Callable[[Any], Any]  # makes a run once more, with another session

_DTYPES = {"float": "float32", "double": "float64"}

_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class OrtCall(ModelCall):
    """A run of a session.

    Attributes:
        method: Name of the session's method.
    """

    method: str = "run"

    def hazard(self) -> str | None:
        """Return why the run must not be repeated unasked, or None if repeating is safe."""
        if not is_repeatable(self.method):
            return (
                f"{self.method} writes into values of the program, which may be what it reads; "
                "`session.run` returns new ones"
            )
        others = [
            value.name
            for value in session_of(self.args, self.kwargs, self.function).get_inputs()
            if not str(value.type).startswith("tensor")
        ]
        if others:
            return f"its input {others[0]} is no tensor, and may be changed by the run"
        return None

    def copied(self, memo: dict[int, Any]) -> OrtCall:
        """Return the run with copied inputs, of the same session."""
        session = session_of(self.args, self.kwargs, self.function)
        memo[id(session)] = session
        return ModelCall.copied(self, memo)


def session_class() -> Any:
    """Return ONNX Runtime's class of sessions; None where the program has not imported it."""
    return getattr(sys.modules.get("onnxruntime"), "InferenceSession", None)


def session_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], function: Any = None) -> Any:
    """Return the session that a method is called of."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return owner
    return args[0] if args else kwargs.get("self")


def subject(session: Any) -> str:
    """Return the name of a session's model for people, found once."""
    if session not in _names:
        _names[session] = model_name(session)
    return _names[session]


def found_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    method: str,
) -> OrtCall:
    """Return a run as a call that can be made again.

    Args:
        function: The method, bound or not.
        args: Its arguments; the session first, if the method is not bound.
        kwargs: Its keyword arguments.
        method: Name of the method.
    """
    return OrtCall(
        function,
        args,
        kwargs,
        subject=subject(session_of(args, kwargs, function)),
        method=method,
    )


def repeated(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Again:
    """Return a function that makes a run with the session that it is given.

    >>> repeated(lambda *given: given, ("session", "feeds"), {})("twin")
    ('twin', 'feeds')
    """
    if args:
        return lambda session: function(session, *args[1:], **kwargs)
    return lambda session: function(**{**kwargs, "self": session})


def run_bound(session: Any, iobinding: Any, run_options: Any = None) -> None:
    """Run a session with another session's binding, which ONNX Runtime's Python class refuses."""
    session._sess.run_with_iobinding(iobinding._iobinding, run_options)


def is_repeatable(method: str) -> bool:
    """Return whether a run writes into nothing that the program has."""
    return method not in _WRITES


def session_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OrtCall | None:
    """Return the call if `function` is a session, or one of its methods that run it, else None."""
    kind = session_class()
    if kind is None:
        return None
    if isinstance(function, kind):
        function = function.run
    method = getattr(function, "__name__", "")
    if method not in RUNS or not isinstance(getattr(function, "__self__", None), kind):
        return None
    return found_call(function, args, kwargs, method)


def tensor_inputs(arguments: Iterable[Any]) -> Inputs:
    """Return shape and data type of each tensor that a run is fed with.

    Nothing for arguments that cannot be looked at: what they are is found out by the run.
    """
    try:
        return tuple(_shape(value) for value in _fed(arguments) if hasattr(value, "shape"))
    except Exception:  # noqa: BLE001  the user's own objects may raise anything
        return ()


def _fed(arguments: Iterable[Any]) -> Iterable[Any]:
    for value in arguments:
        if isinstance(value, Mapping):
            yield from value.values()
        elif hasattr(value, "_numpy_obj_references"):  # of a binding, what lies in NumPy's arrays
            yield from value._numpy_obj_references.values()


def _shape(value: Any) -> tuple[tuple[int, ...], str]:
    if callable(value.shape):  # ONNX Runtime's own values
        told = value.data_type().removeprefix("tensor(").removesuffix(")")
        return tuple(value.shape()), _DTYPES.get(told, told)
    return tuple(value.shape), _dtype_name(value.dtype)


@functools.cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype)  # 6 µs
