"""Compares traces with the first of them: the table that `xsp.compare` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from xsp.answer.comparison import markup, text
from xsp.answer.comparison.alignment import DEPTHS
from xsp.answer.comparison.device import DEVICE_COLUMNS, device_beside
from xsp.answer.comparison.significance import ASSUMED_SPREAD
from xsp.answer.comparison.table import (
    COLUMNS,
    PRIMITIVE_COLUMNS,
    TYPE_COLUMNS,
    primitives_beside,
    table_of,
    types_beside,
)
from xsp.answer.comparison.text import Beside
from xsp.answer.comparison.whole import (
    SUMMARY_COLUMNS,
    differing_settings,
    frameworks_of,
    holds_processes,
    quantities,
    summary,
    tool_of,
)
from xsp.errors import AnalysisError
from xsp.level import Kind
from xsp.trace import Trace


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between a trace and others; `print` shows the largest differences.

    Attributes:
        names: What the traces are called, that which the others are compared with first.
        kind: Deepest kind of span that was compared.
        summary: Latency, device time, throughput and memory of the whole, a row for each trace and
            quantity; `Comparison.summary_columns` says what its columns mean.
        table: A row for each span, sorted by what it costs; `Comparison.columns` says what its
            columns mean.
        by_layer_type: A row for each layer type, sorted by how much its time differs;
            `Comparison.type_columns` says what its columns mean.
        by_primitive: A row for each primitive of a library, likewise, without rows where a trace
            has no library calls; `Comparison.primitive_columns`.
        by_device: A row for each kernel, each operator, and each operator with each of its shapes:
            what devices did, likewise; `Comparison.device_columns`. Without rows where no device
            worked.
        across: Names of the traces that are of another framework than the first.
        settings: A row for each setting in which the traces differ.
        notes: What to know before trusting the differences.
    """

    names: tuple[str, ...]
    kind: Kind
    summary: pl.DataFrame
    table: pl.DataFrame
    by_layer_type: pl.DataFrame
    by_primitive: pl.DataFrame
    by_device: pl.DataFrame
    across: tuple[str, ...]
    settings: pl.DataFrame
    notes: tuple[str, ...]

    columns: ClassVar[Mapping[str, str]] = COLUMNS
    type_columns: ClassVar[Mapping[str, str]] = TYPE_COLUMNS
    primitive_columns: ClassVar[Mapping[str, str]] = PRIMITIVE_COLUMNS
    device_columns: ClassVar[Mapping[str, str]] = DEVICE_COLUMNS
    summary_columns: ClassVar[Mapping[str, str]] = SUMMARY_COLUMNS

    def text(self, *, rows: int = 20, width: int | None = None) -> str:
        """Write the text that `print` shows: settings, the whole, and the rows that cost most.

        Args:
            rows: Most rows of each table.
            width: Columns to fill; None for those of the terminal, or 100 without one.
        """
        parts = self._parts()
        return text.drawn(parts, self.settings, self.notes, rows=rows, width=width)

    def markdown(self, *, rows: int = 10) -> str:
        """Return the comparison as Markdown, for a pull request.

        Args:
            rows: Most rows of each table.
        """
        return markup.markdown(self._parts(), self.settings, self.notes, rows=rows)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Comparison of {' with '.join(self.names)}>"

    def _repr_html_(self) -> str:
        return markup.html(self._parts(), self.settings, self.notes)

    def _parts(self) -> list[Beside]:
        sums = {"layer_type": self.by_layer_type, "primitive": self.by_primitive}
        return [
            Beside(
                (self.names[0], name),
                self.summary.filter(pl.col("trace") == name),
                self.table.filter(pl.col("trace") == name),
                {key: each.filter(pl.col("trace") == name) for key, each in sums.items()}
                if name in self.across
                else {},
                self.by_device.filter(pl.col("trace") == name),
            )
            for name in self.names[1:]
        ]


def compare(
    *traces: Trace, kind: Kind | str | None = None, names: Sequence[str] | None = None
) -> Comparison:
    """Compare traces with the first of them.

    Args:
        traces: Two traces or more, of xsp or imported.
        kind: Deepest kind of span to compare: `layer`, `op`, `call`, `kernel` (with copies and
            sets), or `region` for the whole and the user's own spans. None: layers, or the
            outermost kind that all traces have where one has no layers.
        names: What to call the traces; None: the traces' own names, numbered where they are equal.

    Returns:
        The differences, what became of each span, and what was measured differently.

    Raises:
        ValueError: There are fewer than two traces, as many names as traces are missing, or there
            is no such kind.
        AnalysisError: A trace has no span of the kind.
    """
    if len(traces) < 2:
        raise ValueError(
            f"there must be two traces or more to compare, and there are {len(traces)}"
        )
    called = names_of(traces, names)
    depth = _outermost(traces) if kind is None else _checked(kind, traces, called)
    first, others = traces[0], list(zip(called[1:], traces[1:], strict=True))
    frameworks = frameworks_of(first)
    across = tuple(
        name
        for name, other in others
        if frameworks and (theirs := frameworks_of(other)) and not frameworks & theirs
    )
    # Frameworks call the layers of one model by other names: no span tells its partner.
    tables = [
        table_of(name, first, other, Kind.REGION if name in across else depth)
        for name, other in others
    ]
    known = [quantities(trace, widen=not holds_processes(trace)) for trace in traces]
    wholes = zip(called[1:], known[1:], strict=True)
    depth = Kind.REGION if len(across) == len(others) else depth
    return Comparison(
        called,
        depth,
        pl.concat([summary(name, known[0], other) for name, other in wholes]),
        table := pl.concat(tables),
        pl.concat([types_beside(name, first, other) for name, other in others]),
        pl.concat([primitives_beside(name, first, other) for name, other in others]),
        pl.concat([device_beside(name, first, other) for name, other in others]),
        across,
        differing_settings(called, traces),
        tuple(_notes(called, traces, depth, table, across)),
    )


def names_of(traces: Sequence[Trace], names: Sequence[str] | None) -> tuple[str, ...]:
    """Name the traces, numbered if names are equal; None: their own names."""
    if names is None:
        names = [trace.name for trace in traces]
    elif len(names) != len(traces):
        raise ValueError(f"there are {len(names)} names for {len(traces)} traces")
    often = Counter(names)
    return tuple(
        f"{name} ({number})" if often[name] > 1 else name for number, name in enumerate(names, 1)
    )


def _checked(kind: Kind | str, traces: Sequence[Trace], names: Sequence[str]) -> Kind:
    """Return a kind that every trace has."""
    if kind not in DEPTHS:
        raise ValueError(f"there is no kind {kind!r} to compare by; there are {', '.join(DEPTHS)}")
    depth = Kind(kind)
    for trace, name in zip(traces, names, strict=True):
        if not _has(trace, depth):
            common = [each.value for each in DEPTHS if all(_has(one, each) for one in traces)]
            raise AnalysisError(
                f"the trace {name} has no span of kind {depth.value}; what all traces have: "
                f"{', '.join(common) or 'nothing but a root'}"
            )
    return depth


def _outermost(traces: Sequence[Trace]) -> Kind:
    """Return layers, or the next kind that all traces have."""
    inner = [kind for kind in DEPTHS if kind is not Kind.REGION]
    return next((kind for kind in inner if all(_has(trace, kind) for trace in traces)), Kind.REGION)


def _has(trace: Trace, kind: Kind) -> bool:
    return bool(trace.spans["kind"].is_in([each.value for each in DEPTHS[kind]]).any())


def _notes(
    names: Sequence[str],
    traces: Sequence[Trace],
    depth: Kind,
    table: pl.DataFrame,
    across: Sequence[str],
) -> Iterator[str]:
    """Yield what to know before trusting the differences."""
    one_process = [
        n
        for n, t in zip(names, traces, strict=True)
        if (not holds_processes(t) and t.root.latency_low_ns is not None)
    ]
    if one_process:
        yield (
            f"{' and '.join(one_process)}: measured in one process, and another may be faster or "
            f"slower; {ASSUMED_SPREAD:.0%} (standard deviation) is assumed for that, and is in "
            "the intervals here. `xsp profile` measures in several processes, and need not assume"
        )
    busy = [
        name
        for name, trace in zip(names, traces, strict=True)
        if any(warning.code == "busy-machine" for warning in trace.warnings)
    ]
    if busy:
        yield (
            f"{' and '.join(busy)}: other programs kept the processors busy meanwhile, so that a "
            "difference may be theirs. Measure both again on a quiet machine"
        )
    for name, trace in zip(names, traces, strict=True):
        if tool := tool_of(trace):
            yield f"{name}: recorded by {tool}, whose overhead is in the latencies of the host"
        if trace.root.latency_low_ns is None:
            why = "it is one step, and " if tool_of(trace) else ""
            yield (
                f"{name}: {why}there is no interval of the model's latency, so that nobody can "
                "tell its differences from chance; of more runs or steps there would be one"
            )
    if (table["calls_a"] != table["calls_b"]).any():
        yield (
            "some spans are called more often in one trace: differences are those of all calls, "
            "percentages and verdicts those of one call"
        )
    if across:
        yield (
            f"{' and '.join(across)}: of another framework than {names[0]}, so that layers and "
            "operators are not matched one to one; their sums by layer type are compared"
        )
    if depth is not Kind.LAYER:
        return
    for name in (each for each in names[1:] if each not in across):
        layers = table.filter(pl.col("trace") == name, pl.col("kind") == Kind.LAYER.value)
        if not layers["change"].is_in(["same", "renamed", "moved", "fused", "split"]).any():
            yield f"{name}: no layer of {names[0]} was found in it; are these different models?"
