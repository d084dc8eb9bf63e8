"""Defines how a provider takes requests, hands over raw records, and turns records into rows.

`start` arms a provider, which keeps raw records while the model runs; `stop` disarms the provider
and hands the records over; `spans` turns records into rows, later and without side effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider.row import Accounts, Readings, Samples, SpanRows


@dataclass(frozen=True, slots=True)
class Request:
    """The kinds of span and attributes that one visit of a pass records.

    Attributes:
        kinds: Kinds of span that are recorded. A provider records its own kinds among these,
            and nothing else.
        detail: Whether attributes that cost time (shapes, memory) are recorded as well. No
            latency is ever taken from such a run, which has library calls only if something
            deeper, or nothing else, is recorded.
        sampled: Whether samples of what Python runs are taken (`Sampler`). No latency is ever taken
            from such a run, and samplers take no sample in others.
        whole_model: Whether each step is one call of a model and nothing else, so that a
            `predict` span inside the step would be the root a second time.
        measured: Kinds of span that the measurement records in any visit.
        monitored: Whether the visit is for readings alone (`Monitor`), so that a monitor waits
            until it has the first of them.
    """

    kinds: frozenset[Kind]
    detail: bool = False
    sampled: bool = False
    whole_model: bool = False
    measured: frozenset[Kind] = frozenset()
    monitored: bool = False

    @property
    def deepest(self) -> bool:
        """Whether a span that is missing in this visit is missing in every visit."""
        return self.kinds == self.measured


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a provider: opaque to all but the provider's own `spans`.

    Attributes:
        data: The records themselves.
        dropped: How many records were lost.
        warnings: Sentences that say which things could not be recorded, and why.
        notes: Sentences that say how things were recorded, where nothing is amiss.
    """

    data: Any
    dropped: int = 0
    warnings: tuple[str, ...] = ()
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

        Of the system level, one line for each thing that can be watched on some machines: its
        name, a colon, and "yes", or "no" with the remedy. `xsp doctor` shows it. Called only where
        the provider is available; never raises.
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


@runtime_checkable
class Accountant(Protocol):
    """A provider that records what the operating system does to threads, besides system calls.

    Its kind is `Kind.SYSCALL`. It is armed in the passes of the system level alone, which give
    no latencies but those of system calls.
    """

    def accounts(self, records: Records) -> Accounts:
        """Turn records into accounts (`ACCOUNT_SCHEMA`), without side effects."""
        ...


@runtime_checkable
class Monitor(Protocol):
    """A provider that reads energy and utilization beside the program, and records no spans.

    It has no kinds, and is armed in a pass of its own, or for the whole of a `with` block, whose
    beginning it must not hold up.
    """

    def has_energy(self) -> bool:
        """Tell whether it can read more than the host: a device, or an energy counter."""
        ...

    def readings(self, records: Records) -> Readings:
        """Turn records into readings (`READING_SCHEMA`), without side effects."""
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
        that calls the model. Making the span prints nothing, draws no random number and keeps
        no gradient.
        """
        ...
