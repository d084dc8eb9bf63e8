"""Comparison: two traces or more in, what differs between the first and each other one out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from xsp.comparison import markup, text
from xsp.comparison.alignment import DEPTHS
from xsp.comparison.setting import differing_settings, holds_processes, tool_of
from xsp.comparison.significance import ASSUMED_SPREAD
from xsp.comparison.table import COLUMNS, table_of
from xsp.comparison.whole import SUMMARY_COLUMNS, quantities, summary
from xsp.errors import AnalysisError
from xsp.level import Kind
from xsp.trace import Trace, attribute_column


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
        settings: A row for each setting in which the traces differ.
        notes: What to know before trusting the differences.
    """

    names: tuple[str, ...]
    kind: Kind
    summary: pl.DataFrame
    table: pl.DataFrame
    settings: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def columns(self) -> Mapping[str, str]:
        """What each column of `table` means."""
        return COLUMNS

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
    table = pl.concat([table_of(name, traces[0], other, depth) for name, other in pairs])
    return Comparison(
        called,
        depth,
        pl.concat(
            [summary(name, first, other) for name, other in zip(called[1:], others, strict=True)]
        ),
        table,
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
    if any(attribute_column(trace.spans, "calls", pl.Int64).max() is not None for trace in traces):
        yield (
            "rows that stand for several calls are compared by their sums: where one trace has "
            "more calls, it has more time"
        )
    if depth is not Kind.LAYER:
        return
    for name in names[1:]:
        layers = table.filter(pl.col("trace") == name, pl.col("kind") == Kind.LAYER.value)
        if not layers["change"].is_in(["same", "renamed", "moved", "fused", "split"]).any():
            yield f"{name}: no layer of {names[0]} was found in it; are these different models?"


def _is_widened(trace: Trace) -> bool:
    return not holds_processes(trace) and trace.root.latency_low_ns is not None
