"""Logs what TensorFlow does in a program: calls, backward passes, optimizers' steps, data loading.

A call is one of a Keras layer or a function that lies in no other call. A function whose
graph computes gradients and writes to variables is a whole training step, as is what `fit` calls;
in a loop with a gradient tape the reader puts steps together.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from xsp.provider import (
    BACKWARD as BACKWARD_CODE,
)
from xsp.provider import OPTIMIZER, PART, TRAINING_STEP, CallFacts, Inputs, ProgramLog
from xsp_levels.framework.keras.calls import KerasCalls, inputs_of, plain_arguments
from xsp_levels.framework.owner import Owner, Owners
from xsp_levels.framework.recompiling import REASON, changed
from xsp_levels.framework.tensorflow.program.call import (
    Subject,
    graph_call,
    subject_of,
)
from xsp_levels.framework.tensorflow.program.effect import Effect, Effects, traced_anew, traces
from xsp_levels.framework.tensorflow.program.entry import (
    BACKWARD,
    END_OF_LOADING,
    ENDS,
    LOADING,
    OPTIMIZER_STEP,
    entry_points,
    executing_eagerly,
    keras_is_on_tensorflow,
)

_INTERNAL = "tensorflow."  # functions that TensorFlow traces for itself


class TensorFlowWatcher:
    """See `xsp.provider.ProgramWatcher`."""

    logs_layers = False

    def __init__(self) -> None:
        self._log: Any = None
        self._keras: KerasCalls | None = None

    @property
    def is_active(self) -> bool:
        """Whether it watches a program."""
        return self._log is not None

    def begin(self, log: ProgramLog) -> None:
        """Put the hooks in place, as soon as the program has imported TensorFlow."""
        self._log = log
        self._owners, self._effects = Owners(), Effects()
        # Names and phases of functions; a `Subject` would keep the function alive.
        self._known: weakref.WeakKeyDictionary[Any, tuple[Owner, str | None] | None] = (
            weakref.WeakKeyDictionary()
        )
        self._keras = KerasCalls(log, self._owners, log.make, _taped)
        self.resume()

    def suspend(self) -> None:
        """Take the hooks out for a while."""
        entry_points().watch(None)
        if self._keras is not None:
            self._keras.suspend()

    def resume(self) -> None:
        """Put the hooks in place."""
        entry_points().watch(self)
        self.found()

    def end(self) -> None:
        """Take the hooks out for good, and let go of everything."""
        self.suspend()
        if self._keras is not None:
            self._keras.end()
        self._log = self._keras = None
        self._known.clear()

    def found(self) -> None:
        """Hook the calls of Keras's layers, once Keras is there and runs on TensorFlow."""
        if self._keras is not None and keras_is_on_tensorflow():
            self._keras.resume()

    def call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of a function, and log it if it lies in no other."""
        log = self._log
        if log is None or log.local.inside is not None:
            return call(*args, **kwargs)
        known = self._function(args[0]) if executing_eagerly() else None
        if known is None:
            return call(*args, **kwargs)
        return self._graph(log, *known, call, args, kwargs)

    def part(
        self, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call that is a part of the program, and log it."""
        log = self._log
        if log is None:
            return call(*args, **kwargs)
        number, code, local = 0, BACKWARD_CODE, log.local
        if name == OPTIMIZER_STEP:
            kind = type(args[0]).__name__
            which = {"optimizer": self._owners.of(args[0], kind).number}
            number, code = log.name(kind, which), OPTIMIZER
        elif name != BACKWARD:
            number, code = log.name(name), PART
        mine, was = log.begin_part(number, code), local.inside
        if was is None and code != PART:
            local.inside = False  # what gradients are computed by is no call of the program's
        error: BaseException | None = None
        try:
            return call(*args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            local.inside = was
            ended = name == LOADING and type(error).__name__ in ENDS
            log.end_part(mine, error, log.name(END_OF_LOADING) if ended else 0)
            error = None

    def trace(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace a function, and log that as a part."""
        log, options = self._log, args[-1]
        plain = options.python_function
        if log is None or str(getattr(plain, "__module__", "")).startswith(_INTERNAL):
            return call(*args, **kwargs)
        whose = str(getattr(plain, "__qualname__", options.name)).rpartition("<locals>.")[2]
        name, facts = f"trace {whose.removesuffix('.__call__')}", {}
        known = [_types(each.function_type) for each in options.function_cache.values()]
        told = _types(args[0])
        # The first call is traced twice if it makes variables: then its types are known already.
        if known and told not in known:
            name, facts = f"re{name}", {REASON: changed(known[-1], told)}
        with log.part(log.name(name, facts)):
            return call(*args, **kwargs)

    def _function(self, function: Any) -> tuple[Owner, str | None] | None:
        """Return name and phase of a function; None of those that TensorFlow makes for itself."""
        if function not in self._known:
            subject: Subject | None = subject_of(function)
            known = None
            if subject is not None:
                known = self._owners.of(subject.owner, subject.name), subject.phase
            self._known[function] = known
        return self._known[function]

    def _graph(  # what is known of a call when it is found
        self,
        log: Any,
        owner: Owner,
        phase: str | None,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        function, before = args[0], traces(args[0])
        asked = phase is None and before
        if asked:
            phase = _phase(self._effects.of(function))
        told = plain_arguments(args[1:], kwargs)
        number = self._number(owner, phase or "", inputs_of(args[1:], kwargs), told)
        if log.keeping:
            bound = partial(call, function)
            effect = partial(self._effects.of, function)
            log.keep(
                number,
                graph_call(
                    bound, args[1:], kwargs, name=owner.name, phase=phase or "", effect=effect
                ),
            )
        result = log.make(number, call, args, kwargs)
        after = traces(function)
        if 0 < before < after:
            log.warning(traced_anew(f"{owner.name} {phase or ''}".strip()))
        if phase is None and after and _phase(self._effects.of(function)):
            log.amend(number, replace(log.facts[number], phase=TRAINING_STEP))
        return result

    def _number(self, owner: Owner, phase: str, inputs: Inputs, told: tuple[str, ...]) -> int:
        taped = not phase and _taped()
        key: Hashable = owner.number, owner.name, phase, taped, inputs, told
        number: int = self._log.call_number(
            key,
            lambda: CallFacts(
                owner.name, owner.number, phase=phase, gradients=taped, inputs=inputs,
                arguments=told, settings=("as a graph",),
            ),
        )  # fmt: skip
        return number


def _types(function_type: Any) -> list[str]:
    """Word the type of each argument that a function was traced for."""
    types = [each.type_constraint for each in function_type.parameters.values()]
    return [
        f"{kind.dtype.name} {kind.shape}" if hasattr(kind, "dtype") else str(kind) for kind in types
    ]


def _phase(effect: Effect) -> str:
    return TRAINING_STEP if effect.trains else ""


def _taped() -> bool:
    tapes: Any = sys.modules["tensorflow.python.eager.record"]
    return bool(tapes.could_possibly_record())
