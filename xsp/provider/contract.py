"""The provider contract: how a level of the stack is observed.

A provider is armed by `start`, keeps raw records while the model runs, is
disarmed by `stop`, and turns records into rows in `spans`, later and purely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider.row import SpanRows


@dataclass(frozen=True, slots=True)
class Request:
    """What one visit of a rung records.

    Attributes:
        kinds: Kinds of span that are recorded; a provider records those of its
            own that are among them, and nothing else.
        detail: Whether attributes that cost time (shapes, memory) are recorded
            as well. No latency is ever taken from such a run.
        whole_model: Whether each evaluation is one call of a model and nothing
            else, so that a `predict` span inside it would say the same twice.
        deepest: Whether these are all the kinds that the measurement records: what such
            a run misses, every run misses.
    """

    kinds: frozenset[Kind]
    detail: bool = False
    whole_model: bool = False
    deepest: bool = False


@dataclass(frozen=True, slots=True)
class Records:
    """What a provider kept: opaque to all but its own `spans`.

    Attributes:
        data: The records themselves.
        dropped: How many records were lost.
        problems: Sentences about what could not be recorded, and why.
    """

    data: Any
    dropped: int = 0
    problems: tuple[str, ...] = ()


@runtime_checkable
class Provider(Protocol):
    """Observes one level of one thing.

    Between `start` and `stop` a hook appends a few integers and returns. The
    clock is read last before the observed code and first after it, so that what
    recording costs lies outside the span itself and inside the spans around it.
    """

    name: str
    level: Level
    kinds: frozenset[Kind]

    def unavailable(self) -> str | None:
        """Return one sentence why it cannot work here and what would change that."""
        ...

    def start(self, clock: Clock, request: Request) -> None:
        """Arm; recording has begun when it returns."""
        ...

    def stop(self) -> Records:
        """Disarm, and hand over what was recorded."""
        ...

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows (`ROW_SCHEMA`). Pure."""
        ...


@runtime_checkable
class SelfDiagnosing(Protocol):
    """A provider that works better on some machines than on others, and says how well here."""

    def remark(self) -> str | None:
        """Return one sentence about how exact it is here, and what would change that.

        `xsp doctor` shows it. Asked only where the provider is available; never raises.
        """
        ...


@runtime_checkable
class Packable(Protocol):
    """A provider whose records can be kept in a file, to be interpreted elsewhere.

    What was read from the file makes the same rows as what was recorded. A provider whose
    records hold more than its `record_type` may hold (objects of its library, say) has a
    method `plain(records)` besides, which returns records that do not. Pure.

    Attributes:
        record_type: The type of `Records.data`: a dataclass, or what can be annotated in
            one: numbers, texts, bytes, `NDArray`s of numbers, enumerations, dataclasses,
            and tuples, lists, sets and mappings of these (see `packing`).
    """

    record_type: Any


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call that is an evaluation, as a watcher found it or the user gave it.

    A watcher's calls are of a class of its own, which knows what its framework's models do.

    Attributes:
        function: What is called.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        name: Name of the root span.
        subject: What it is, for people: `ResNet`.
        whole_model: Whether `function` is the model itself and nothing else.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = "predict"
    subject: str = ""
    whole_model: bool = True

    def __call__(self) -> Any:
        """Make the call."""
        return self.function(*self.args, **self.kwargs)

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if it is safe."""
        return "what it does besides returning a result is not known"

    def conditions(self) -> AbstractContextManager[None]:
        """Return a context in which repeating the call is what the call was."""
        return nullcontext()


class Evaluations(Protocol):
    """What a watcher tells of the evaluations that it finds."""

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return its result."""
        ...

    def begin(self, call: ModelCall) -> None:
        """Open an evaluation that is more than this call: a training step."""
        ...

    def extend(self) -> None:
        """Note that the open evaluation has lasted at least until now."""
        ...

    def end(self) -> None:
        """Close the open evaluation at the time last noted."""
        ...

    def passed_over(self, subject: str) -> None:
        """Count an outermost call of another model than the one being measured."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A provider that can also tell where a model's evaluations begin and end.

    While it watches, every outermost call of a model is handed to `evaluations`;
    nothing inside such a call is watched or slowed.
    """

    def watch(self, evaluations: Evaluations) -> None:
        """Begin to watch."""
        ...

    def unwatch(self) -> None:
        """Stop watching; nothing stays behind."""
        ...

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a model of this framework, else None."""
        ...

    def versions(self, call: ModelCall) -> tuple[int, ...]:
        """Return numbers that change when the arguments of a call, anybody's, are written to."""
        ...

    def synchronize(self) -> None:
        """Wait until the devices have done everything asked of them."""
        ...
