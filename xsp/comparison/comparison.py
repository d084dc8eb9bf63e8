"""Comparison: two traces or more in, what differs between the first and each other one out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.comparison import markup, text
from xsp.comparison.alignment import DEPTHS
from xsp.comparison.by import (
    PRIMITIVE_COLUMNS,
    TYPE_COLUMNS,
    primitives_beside,
    types_beside,
)
from xsp.comparison.setting import differing_settings, holds_processes, tool_of
from xsp.comparison.significance import ASSUMED_SPREAD
from xsp.comparison.table import COLUMNS, depth_across, differ_in_framework, table_of
from xsp.comparison.whole import SUMMARY_COLUMNS, quantities, summary
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
    across: tuple[str, ...]
    settings: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def columns(self) -> Mapping[str, str]:
        """What each column of `table` means."""
        return COLUMNS

    @property
    def type_columns(self) -> Mapping[str, str]:
        """What each column of `by_layer_type` means."""
        return TYPE_COLUMNS

    @property
    def primitive_columns(self) -> Mapping[str, str]:
        """What each column of `by_primitive` means."""
        return PRIMITIVE_COLUMNS

    @property
    def summary_columns(self) -> Mapping[str, str]:
        """What each column of `summary` means."""
        return SUMMARY_COLUMNS

    def text(self, *, rows: int = 20, width: int | None = None) -> str:
        """Return what `print` shows: settings, the whole, and the rows that cost most.

        Args:
            rows: Most rows of each table.
            width: Columns to fill; None for those of the terminal, or 100 without one.
        """
        return text.drawn(self, rows=rows, width=width)

    def markdown(self, *, rows: int = 10) -> str:
        """Return the comparison as Markdown, for a pull request.

        Args:
            rows: Most rows of each table.
        """
        return markup.markdown(self, rows=rows)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Comparison of {' with '.join(self.names)}>"

    def _repr_html_(self) -> str:
        return markup.html(self)


def compare(
    *traces: Trace, kind: Kind | str | None = None, names: Sequence[str] | None = None
) -> Comparison:
    """Compare traces with the first of them.

    Args:
        traces: Two traces or more, of xsp or imported.
        kind: Deepest kind of span to compare: `layer`, `op`, `call`, `kernel` (with copies and
            sets), or `pipeline` for the whole and the user's own spans. None: layers, or the
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
    pairs = list(zip(called[1:], traces[1:], strict=True))
    first, *others = (quantities(trace, widen=not holds_processes(trace)) for trace in traces)
    deepest = [
        (None if kind is not None else depth_across(traces[0], other)) or depth
        for _, other in pairs
    ]
    table = pl.concat(
        [
            table_of(name, traces[0], other, down_to, operators=kind == Kind.OP)
            for (name, other), down_to in zip(pairs, deepest, strict=True)
        ]
    )
    depth = max(deepest, key=list(DEPTHS).index)
    return Comparison(
        called,
        depth,
        pl.concat(
            [summary(name, first, other) for name, other in zip(called[1:], others, strict=True)]
        ),
        table,
        pl.concat([types_beside(name, traces[0], other) for name, other in pairs]),
        pl.concat([primitives_beside(name, traces[0], other) for name, other in pairs]),
        tuple(name for name, other in pairs if differ_in_framework(traces[0], other)),
        differing_settings(called, traces),
        tuple(_notes(called, traces, depth, table)),
    )


def names_of(traces: Sequence[Trace], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return what traces are called, numbered where names are equal; None: their own names."""
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
                f"the trace {name} has no span of kind {depth.value}; "
                f"what all traces have: {', '.join(common) or 'nothing but a root'}"
            )
    return depth


def _outermost(traces: Sequence[Trace]) -> Kind:
    """Return layers, or the next kind that all traces have."""
    inner = [kind for kind in DEPTHS if kind is not Kind.PIPELINE]
    return next(
        (kind for kind in inner if all(_has(trace, kind) for trace in traces)), Kind.PIPELINE
    )


def _has(trace: Trace, kind: Kind) -> bool:
    return bool(trace.spans["kind"].is_in([each.value for each in DEPTHS[kind]]).any())


def _notes(
    names: Sequence[str], traces: Sequence[Trace], depth: Kind, table: pl.DataFrame
) -> Iterator[str]:
    """Yield what to know before trusting the differences."""
    one_process = [n for n, t in zip(names, traces, strict=True) if _is_widened(t)]
    if one_process:
        yield (
            f"{' and '.join(one_process)}: measured in one process, and another may be faster or "
            f"slower; {ASSUMED_SPREAD:.0%} (standard deviation) is assumed for that, and is in "
            "the intervals here. `xsp profile` measures in several processes, and need not assume"
        )
    for name, trace in zip(names, traces, strict=True):
        if tool := tool_of(trace):
            yield f"{name}: recorded by {tool}, whose overhead is in the latencies of the host"
        if trace.root.latency_low_ns is None:
            yield (
                f"{name}: there is no interval of the model's latency, so that nobody can tell its "
                "differences from chance; of more runs or steps there would be one"
            )
    if text.unlike_calls(table):
        yield (
            "some spans are called more often in one trace: differences are those of all calls, "
            "percentages and verdicts those of one call"
        )
    for name in names[1:]:
        mapped = table.filter(pl.col("trace") == name)
        if mapped["confidence"].count():
            yield _mapping(names[0], name, mapped)
    if depth is not Kind.LAYER:
        return
    for name in names[1:]:
        layers = table.filter(pl.col("trace") == name, pl.col("kind") == Kind.LAYER.value)
        if not layers["change"].is_in(["same", "renamed", "moved", "fused", "split"]).any():
            yield f"{name}: no layer of {names[0]} was found in it; are these different models?"


def _mapping(first: str, name: str, table: pl.DataFrame) -> str:
    """Return how much of two frameworks' layers is mapped, and how sure that is.

    The confidence of the whole is that of all layers, each by its time; without a partner it is 0.
    """
    inside = table[1:]
    times = inside.select(pl.sum_horizontal("latency_a_ns", "latency_b_ns")).to_series().to_numpy()
    times = times if times.sum() else np.ones(len(times))
    whole = float(np.average(inside["confidence"].fill_null(0.0).to_numpy(), weights=times))
    sides = []
    for called, side in ((first, "a"), (name, "b")):
        alone = inside.filter(pl.col("change") == {"a": "removed", "b": "added"}[side]).height
        many = int(inside[f"path_{side}"].count() + inside[f"more_{side}"].list.len().sum())
        sides.append(f"{many - alone:,} of {many:,} layers of {called}")
    return (
        f"{first} and {name} are of different frameworks: {' and '.join(sides)} are mapped onto "
        f"each other by order, layer type, sizes and parameters, with a confidence of {whole:.2f}"
    )


def _is_widened(trace: Trace) -> bool:
    return not holds_processes(trace) and trace.root.latency_low_ns is not None
