"""The contract of watchers: what a framework does in a program is logged as events.

A program is recorded in windows, and read afterwards (`xsp.record.program`, `xsp.reading.program`).
A watcher appends events to the log and returns; it decides nothing, and nothing is interpreted
while the program runs. An event is two entries of a flat list, a code and a time in nanoseconds of
the system's monotonic clock. The low four bits of a code say what happened, the rest is a number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

# Shape and data type of each tensor put into a call.
Inputs = tuple[tuple[tuple[int, ...], str], ...]

# What a code's low four bits say. Begins and ends nest on their thread.
LAYER = 0  # a layer began; the code is the id of the module, a multiple of 16
END = 1  # what began last has ended; a number: under another name (`ProgramLog.name`)
RAISED = 2  # likewise, by an exception; the number is that of the name of its class
CALL = 3  # an outermost call of a model began; the number is that of its facts
BACKWARD = 4  # a backward pass began; number 1: it returned gradients (`autograd.grad`)
OPTIMIZER = 5  # an optimizer's step began; the number is that of the optimizer's name
ENTER = 6  # a hook was entered: until the CALL that follows, xsp worked; number: parts open around
PART = 7  # another part of the program began, such as data loading; number of its name
PAUSE = 8  # xsp began to work; ends with END
REGION = 9  # a region of the user's began; number of the region
LEAVE = 10  # a region ended
AT = 11  # calls that follow on this thread lie in this region; 0: in none
WORKED = 12  # a hook was entered: until the BACKWARD or OPTIMIZER that follows, xsp worked
KIND_BITS = 4
KIND_MASK = (1 << KIND_BITS) - 1

TRANSFORMED = "within torch.func"  # a setting of calls whose inputs do not show all samples
TRAINING_STEP = "training step"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Facts that all calls logged with one number share.

    Attributes:
        model: Name of the model for people: `ResNet`.
        owner: Number that tells the model from others; calls of one model have the same.
        layer: Name of the class of the model's outermost layer; empty if it has none.
        phase: What the model does: `training step` where one call is all of it, `prefill`,
            `extend`, `decode`; empty for anything else.
        gradients: Whether gradients were on, and the model has parameters that want some.
        training: Whether the model was in training mode.
        inputs: Shape and data type of each tensor put in, the leading tensor first.
        arguments: Other arguments that tell calls apart: `steps=9`.
        cache: Length of a cache of keys and values, rounded up to a power of two; 0: none.
        settings: Settings that tell calls apart: `1 thread`, `autocast`.
        batch_first: Whether samples may be counted by the leading size of the leading input.
        passed_over: Whether the call is too little to be taken for one of a model, as a loss is.
    """

    model: str
    owner: int = 0
    layer: str = ""
    phase: str = ""
    gradients: bool = False
    training: bool = False
    inputs: Inputs = ()
    arguments: tuple[str, ...] = ()
    cache: int = 0
    settings: tuple[str, ...] = ()
    batch_first: bool = True
    passed_over: bool = False


@dataclass(frozen=True, slots=True)
class NamedLayer:
    """A module whose calls are logged by its id.

    Attributes:
        path: Where it lies in its model: `layer1.0.conv1`; empty for the model itself.
        name: Name of its class.
        since_ns: From when on the id was this module's.
        until_ns: When it died; None: it had not when its model was last looked through.
    """

    path: str
    name: str
    since_ns: int = 0
    until_ns: int | None = None


class ThreadState(Protocol):
    """State of a log for each thread: an instance of `threading.local`.

    Attributes:
        inside: None: no call of a model is open on the thread. False: one is whose layers are not
            logged. Else the function that appends to the thread's events.
        log: The thread's log, None until it has one (`ProgramLog.begin_thread`).
    """

    inside: Any
    log: Any


class ProgramLog(Protocol):
    """Log in which a watcher writes the events of its framework.

    Attributes:
        now: Returns the time in ns.
        local: The state of the calling thread.
        until: When the present window ends: a hook of an outermost call that begins later calls
            `boundary` first.
        layers: Whether layers are logged in the present window.
        deep: Whether providers record operators in the present window.
        one_thread: Whether one thread alone has logged calls so far.
        keeping: Whether calls are still kept (`keep`).
        region: The context variable that holds the innermost region of the user's.
    """

    now: Callable[[], int]
    local: Any
    until: int
    layers: bool
    deep: bool
    one_thread: bool
    keeping: bool
    region: Any

    def at(self, log: Any, now_ns: int = 0) -> None:
        """Note in a thread's log the user's region in which the following calls lie.

        `now_ns` is given by a hook that logs its entry afterwards, for times may not go back.
        """
        ...

    def begin_thread(self) -> Any:
        """Begin the log of the calling thread, and return it."""
        ...

    def boundary(self, now_ns: int) -> None:
        """End the present window, and begin the next one."""
        ...

    def call_number(self, key: Hashable, facts: Callable[[], CallFacts]) -> int:
        """Return the number of the facts of a call; `facts` is called where the key is new."""
        ...

    def amend(self, number: int, facts: CallFacts) -> None:
        """Replace the facts of a call by those that are known after it was made."""
        ...

    def name(self, name: str, attributes: Mapping[str, Any] | None = None) -> int:
        """Return the number, from 1, of a name with its attributes."""
        ...

    def make(
        self,
        number: int,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Make an outermost call, and log it: for frameworks whose calls are not hot."""
        ...

    def part(self, number: int) -> AbstractContextManager[None]:
        """Log a part of the program: what runs in the `with` block."""
        ...

    def name_layers(self, owner: int, layers: Mapping[int, NamedLayer]) -> None:
        """Name layers by their ids in calls of one model."""
        ...

    def keep(self, number: int, call: ModelCall) -> None:
        """Keep a call, to be repeated after the block if the block makes no more than a few."""
        ...

    def warning(self, message: str) -> None:
        """Note, once, a sentence that a reader of the trace should know."""
        ...


class ProgramWatcher(Protocol):
    """Logs what one framework does in one block of a program, from `begin` to `end`.

    Attributes:
        logs_layers: Whether the watcher logs layers, so that the framework's provider records
            none in the block.
    """

    logs_layers: bool

    def begin(self, log: ProgramLog) -> None:
        """Put the hooks in place."""
        ...

    def suspend(self) -> None:
        """Take the hooks out for a while."""
        ...

    def resume(self) -> None:
        """Put the hooks in place again."""
        ...

    def end(self) -> None:
        """Take the hooks out for good, and let go of everything."""
        ...


class State(NamedTuple):
    """State outside the copy that a rehearsal of a call may change, and that is put back after it.

    Attributes:
        name: What it is, for people: `random numbers`.
        read: Returns what it is now.
        write: Makes it what `read` has returned.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


@dataclass(slots=True)
class ModelCall:
    """One call of a function that the user gives, or that a watcher keeps.

    A provider returns a subclass, which knows what models of its framework do.

    Attributes:
        function: The function, or model, that is called.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        name: Name of the root span.
        subject: Name of the model for people: `ResNet`.
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
        """Return why the call must not be repeated unasked, or None if repeating may be tried."""
        return "what it does besides returning a result is not known"

    def conditions(self) -> AbstractContextManager[None]:
        """Return a context that sets the modes under which the call was made, for repeating it."""
        return nullcontext()

    def copied(self, memo: dict[int, Any]) -> Self:
        """Return the call with copies of what it may change, on which it can be rehearsed.

        By default the arguments are copied, and `function` is the same.

        Args:
            memo: As for `copy.deepcopy`: what is in it is not copied.
        """
        args, kwargs = copy.deepcopy((self.args, dict(self.kwargs)), memo)
        return replace(self, args=args, kwargs=kwargs)

    def model(self) -> Any:
        """Return the model that the call may change; None if it can change none."""
        return None

    def states(self) -> Iterable[State]:
        """List the state that a call may change and no copy holds, such as random generators."""
        return ()


@runtime_checkable
class Layered(Protocol):
    """A call of a model whose layers can be called by themselves."""

    def layer_calls(self, paths: Collection[str]) -> Mapping[str, ModelCall]:
        """Make the call once, and return the calls of layers in it.

        Args:
            paths: Dotted paths of layers from the model.

        Returns:
            The last call of each layer that was called, with its arguments.
        """
        ...


@runtime_checkable
class Watcher(Protocol):
    """A provider that knows the models of a framework."""

    def watcher(self) -> ProgramWatcher | None:
        """Make the watcher of the framework's part of a program; None if it cannot run here."""
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
            their calls return: then asking is no part of what is measured.
        """
        ...


@runtime_checkable
class Awaiting(Protocol):
    """A watcher of a framework whose calls return before their outputs are computed."""

    def await_outputs(self, result: Any) -> None:
        """Wait until what a call returned is computed, as far as it is the framework's."""
        ...


@runtime_checkable
class Fingerprinting(Protocol):
    """A watcher of a framework whose arrays a call can overwrite."""

    def fingerprint(self, value: Any) -> Hashable:
        """Fingerprint the content of a value; None if the value is none of the framework's.

        Asked for arguments before and after a call; costs nothing if the framework is not imported.
        """
        ...
