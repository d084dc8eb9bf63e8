"""The provider contract: requests to record in, raw records and then rows out.

`start` arms a provider, which keeps raw records while the model runs; `stop` disarms the provider
and hands the records over; `spans` turns records into rows, later and without side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider.row import Samples, SpanRows


@dataclass(frozen=True, slots=True)
class Request:
    """What one visit of a rung records.

    Attributes:
        kinds: Kinds of span that are recorded. A provider records its own kinds among these,
            and nothing else.
        detail: Whether attributes that cost time (shapes, memory) are recorded as well. No
            latency is ever taken from such a run.
        sampled: Whether samples of what Python runs are taken (`Sampler`). No latency is ever taken
            from such a run, and samplers take no sample in others.
        whole_model: Whether each evaluation is one call of a model and nothing else, so that a
            `predict` span inside the evaluation would be the root a second time.
        deepest: Whether `kinds` are all the kinds that the measurement records: a span that is
            missing in such a run is missing in every run.
    """

    kinds: frozenset[Kind]
    detail: bool = False
    sampled: bool = False
    whole_model: bool = False
    deepest: bool = False


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a provider: opaque to all but the provider's own `spans`.

    Attributes:
        data: The records themselves.
        dropped: How many records were lost.
        problems: Sentences that say which things could not be recorded, and why.
        notes: Sentences that say how things were recorded, where nothing is amiss.
    """

    data: Any
    dropped: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@runtime_checkable
class Provider(Protocol):
    """Observes one level of one library or device.

    Between `start` and `stop` a hook appends a few integers and returns. The hook reads the
    clock last before the observed code and first after it, so that the cost of recording lies
    outside of the recorded span, and inside the spans around. A provider that cannot keep to
    that is `Calibrating`.
    """

    name: str
    level: Level
    kinds: frozenset[Kind]

    def unavailable(self) -> str | None:
        """Return one sentence why the provider cannot work here, and the remedy; None if it can."""
        ...

    def start(self, clock: Clock, request: Request) -> None:
        """Arm the provider; recording has begun when `start` returns."""
        ...

    def stop(self) -> Records:
        """Disarm the provider, and hand over its records."""
        ...

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows (`ROW_SCHEMA`), without side effects."""
        ...


@runtime_checkable
class SelfDiagnosing(Protocol):
    """A provider that is more exact on some machines than on others, and says how exact here."""

    def remark(self) -> str | None:
        """Return one sentence on how exact the provider is here, and what would change that.

        `xsp doctor` shows the sentence. Called only where the provider is available; never
        raises.
        """
        ...


@runtime_checkable
class Packable(Protocol):
    """A provider whose records can be kept in a file, to be interpreted elsewhere.

    Records that were read from the file make the same rows as the original records. A provider
    whose records hold objects that `record_type` does not allow (objects of its library, say)
    has a method `plain(records)` besides, which returns equal records without such objects and
    has no side effects.

    Attributes:
        record_type: The type of `Records.data`: a dataclass, a number, text, bytes, an
            `NDArray` of numbers, an enumeration, or a tuple, list, set or mapping of these
            (see `packing`).
    """

    record_type: Any


@runtime_checkable
class Sampler(Protocol):
    """A provider that samples what Python runs, where the request says so (`Request.sampled`)."""

    def samples(self, records: Records) -> Samples:
        """Turn records into samples (`SAMPLE_SCHEMA`), without side effects."""
        ...


@dataclass(frozen=True, slots=True)
class EmptySpan:
    """A span in which nothing happens; recorded, its length shows what recording costs inside.

    Attributes:
        name: Name of the rows that the provider makes of the span.
        make: Call that makes one such span on this thread while the provider is armed.
        bare: Call that takes, between two readings of the clock, as long as the span takes with
            nothing recorded; None: no call, only the two readings.
        apart: Call that takes as long as the part of `bare` that lies outside of the span; None:
            the span is all of `bare`.
    """

    name: str
    make: Callable[[], object]
    bare: Callable[[], object] | None
    apart: Callable[[], object] | None = None


@runtime_checkable
class Calibrating(Protocol):
    """A provider whose recording takes time between the two ends of the recorded span.

    The session makes 200 empty spans of each kind, and as many bare ones, while it warms up, and
    merging takes what recording them cost inside off the latency of every span of the same
    provider and kind.
    """

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty span of a kind.

        None if the provider has none of this kind, or if the program would notice one here: by
        hooks or modes of its own, say. Called while the provider is not armed, on the thread
        that evaluates the model. Making the span prints nothing, draws no random number and keeps
        no gradient.
        """
        ...


# Shape and data type of each tensor put into a call.
Inputs = tuple[tuple[tuple[int, ...], str], ...]
# What is called, with which positional and keyword arguments.
Work = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
# Subject, phase and inputs of a call: calls that have them in common are of one group.
Likeness = tuple[str, str, Inputs]


@dataclass(slots=True)  # making a frozen one would take microseconds of each call of a model
class ModelCall:
    """One call that is an evaluation, found by a watcher or given by the user.

    A watcher returns a subclass, which knows what models of the watcher's framework do.

    Attributes:
        function: The function, or model, that is called.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        name: Name of the root span.
        subject: Name of the model for people: `ResNet`.
        whole_model: Whether `function` is the model itself and nothing else.
        phase: What the model does in the call: `training step`, `prefill`, `decode`; empty for
            plain inference.
        inputs: Shape and data type of each tensor put in, the leading tensor first.
        found_ns: When the watcher found the call, on the system's monotonic clock; 0: when the
            call is handed on.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = "predict"
    subject: str = ""
    whole_model: bool = True
    phase: str = ""
    inputs: Inputs = ()
    found_ns: int = 0

    @property
    def work(self) -> Work:
        """What is called, and with which arguments."""
        return self.function, self.args, self.kwargs

    def take(self, work: Work) -> None:
        """Become a call of other work, made under the conditions that there are now."""
        self.function, self.args, self.kwargs = work

    def __call__(self) -> Any:
        """Make the call."""
        return self.function(*self.args, **self.kwargs)

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating is safe."""
        return "what it does besides returning a result is not known"

    def conditions(self) -> AbstractContextManager[None]:
        """Return a context that sets the modes under which the call was made, for repeating it."""
        return nullcontext()


class Waiting(Protocol):
    """A time in which the program waits for xsp.

    Attributes:
        until_ns: When it ends, on the system's monotonic clock.
    """

    until_ns: int


class Evaluations(Protocol):
    """The receiver of the evaluations that a watcher finds.

    Every method is called on the thread on which the evaluation, or the part of the program, runs.

    Attributes:
        by_hand: Whether the program marks its evaluations itself, so that the watcher tells of
            parts alone (`mark`). Does not change while the watcher watches.
    """

    by_hand: bool

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return the result of the call."""
        ...

    def again(self, like: Likeness, work: Work, found_ns: int) -> tuple[Any, Waiting] | None:
        """Make a call as others before that were handed to `run`, if its times alone are wanted.

        It takes a fraction of what `run` takes, and makes quick models no slower.

        Args:
            like: Subject, phase and inputs of the call, as a `ModelCall` has them.
            work: What is to be called with which arguments.
            found_ns: When the watcher found the call, on the system's monotonic clock.

        Returns:
            The result of the call, and the time after it in which the program waits for xsp, whose
            end the watcher may set as the last thing that it does; None: the call was not made, and
            `run` is to make it.
        """
        ...

    def begin(self, call: ModelCall | None) -> str:
        """Open an evaluation that is longer than a call: a training step.

        Args:
            call: The first call of a model in the evaluation, about to be made; None where the
                evaluation begins before that call (`identify` names the call then).

        Returns:
            The variant with which the evaluation is going to end, if it goes as those before:
            then `extend` may be called at its end alone, so that a quick step is not made slower
            by being watched. Empty where that is not known.
        """
        ...

    def identify(self, call: ModelCall) -> None:
        """Name the first call of a model in the open evaluation, which began without."""
        ...

    def extend(self, until_ns: int | None = None, pauses: Sequence[tuple[int, int]] = ()) -> None:
        """Note that the open evaluation has lasted at least until a time.

        Args:
            until_ns: CLOCK_MONOTONIC when the watcher's own work began, which is then no part of
                the evaluation; None: now.
            pauses: Begin and end of each time since the last call in which the watcher worked. If
                the last one begins at `until_ns`, what came after it was the program's work.
        """
        ...

    def end(self, variant: str = "", calls: int = 1) -> None:
        """Close the open evaluation at the time last noted.

        Args:
            variant: What tells the evaluation from others that began with a call alike, such as
                the optimizers that stepped.
            calls: How often the model was called in the evaluation.
        """
        ...

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """Note a part of the program that is no evaluation: data loading, a scheduler's step.

        Called when the part has ended, on the thread where it ran; also for parts within an
        evaluation, and within other parts, which end first.

        Args:
            name: Name of the part.
            start_ns: When the part began, on the system's monotonic clock.
            end_ns: When the part ended.
            attributes: Anything worth knowing about the part.
        """
        ...

    def problem(self, message: str) -> None:
        """Note, once, a sentence that a reader of the trace should know of an evaluation."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A provider that can also tell where a model's evaluations begin and end.

    While the provider watches, every outermost call of a model is handed to `evaluations`;
    nothing inside such a call is watched or slowed.
    """

    def watch(self, evaluations: Evaluations) -> None:
        """Begin to watch, and report evaluations to `evaluations`."""
        ...

    def unwatch(self) -> None:
        """Stop watching, and take every hook away."""
        ...

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a model of this framework, else None."""
        ...

    def synchronize(self) -> bool:
        """Wait until the devices have finished all work that they were given.

        Returns:
            False if there is nothing to wait for, as on a CPU whose operators have ended when
            their calls return: then asking is no part of the evaluation.
        """
        ...


@runtime_checkable
class StepWatcher(Protocol):
    """A watcher whose training steps end at the next call of a model, which may be another's."""

    def goes_on(self) -> bool:
        """Return whether a training step of this thread goes on, and end a step that does not.

        Called when a model of another framework is about to be called on this thread, between two
        calls of the watcher's own. A call within a step that goes on is a part of the step.
        """
        ...


@runtime_checkable
class Awaiting(Protocol):
    """A watcher of a framework whose calls return before their outputs are computed."""

    def await_outputs(self, result: Any) -> None:
        """Wait until what a call returned is computed, as far as it is the framework's."""
        ...
