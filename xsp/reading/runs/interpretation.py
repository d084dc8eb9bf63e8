"""Interprets the visits of a session as runs with correlated rows, and collects warnings.

Providers turn their records into rows (`Provider.spans`), and correlation makes a tree of
the rows of each step. Interpretation is pure: no provider is armed, no clock is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.errors import guarded
from xsp.level import Kind, Level
from xsp.matching import Pass, Run, with_inside_costs
from xsp.provider import (
    ACCOUNT_SCHEMA,
    MOST_SPANS,
    SAMPLE_SCHEMA,
    Accountant,
    Accounts,
    Provenance,
    Provider,
    Records,
    Sampler,
    Samples,
    SpanRows,
    checked,
    concat_rows,
    no_rows,
    span_rows,
    within_memory,
)
from xsp.reading.accounting import with_accounts
from xsp.reading.correlation import (
    Trees,
    any_captured,
    captures,
    correlate,
    place_by_order,
    unseen,
    with_captured,
)
from xsp.reading.runs.pause import (
    rows_without_pauses,
    samples_without_pauses,
    without_pauses,
)
from xsp.reading.runs.self_time import with_self_time
from xsp.record.session import InsideCost, Visit, counting, worth_keeping
from xsp.text import counted
from xsp.warning import NOTE, TraceWarning, WarningCount

Bools = NDArray[np.bool_]

_BATCH = 256  # steps correlated at once: more would save no more time
_LEFT_OUT = (
    "a step has about {} {} spans, more than the {} that fit into memory: they are missing. "
    "Profile fewer levels, or a smaller part of the program as a step."
)
_UNSEEN = (
    "{} of CUDA graphs were captured before xsp started, so their operators and layers are "
    "unknown; times are right. Measure a function whose first call captures the graph."
)
_LARGEST = (1 << 63) - 1  # that a column of ids holds
# What a program does itself, in contrast to waiting for devices.
_PROGRAM = [kind.value for kind in (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL)]


@dataclass(frozen=True, slots=True)
class Interpretation:
    """The runs that the visits of one process hold, and what is missing from the runs.

    Attributes:
        runs: Every step that counts, as a run.
        warnings: Sentences on what providers could not record or interpret, each once.
        counts: How many rows were lost, found no parent, or are ambiguous, by pass.
        samples: What Python ran while it was sampled, between steps as well.
    """

    runs: tuple[Run, ...]
    warnings: tuple[TraceWarning, ...]
    counts: tuple[WarningCount, ...]
    samples: Samples = field(
        default_factory=lambda: pl.DataFrame(schema=SAMPLE_SCHEMA), compare=False
    )


def interpret(
    visits: Sequence[Visit],
    providers: Sequence[Provider],
    *,
    inside_costs: Iterable[InsideCost] = (),
    synchronous: bool = False,
) -> Interpretation:
    """Return the runs that visits hold.

    Args:
        visits: Visits in the order in which they were made.
        providers: Providers of the session in their order, which keeps the ids of their
            rows apart.
        inside_costs: What recording costs inside spans, as the session measured it.
        synchronous: Whether the host waited for each kernel; see `xsp.reading.correlation`.
    """
    return _Interpreter(tuple(providers), tuple(inside_costs), synchronous).interpret(visits)


@dataclass(frozen=True, slots=True)
class VisitRows:
    """The rows of one visit, not yet correlated, and what is missing from them."""

    rows: SpanRows
    warnings: tuple[TraceWarning, ...]
    counts: tuple[WarningCount, ...]
    accounts: Accounts


def read_visit(
    visit: Visit, providers: Sequence[Provider], inside_costs: Iterable[InsideCost] = ()
) -> VisitRows:
    """Return the rows that the providers of one visit recorded."""
    interpreter = _Interpreter(tuple(providers), tuple(inside_costs), synchronous=False)
    return interpreter.read(visit)


class _Interpreter:
    """One interpretation: its providers, and the warnings noted on the way."""

    def __init__(
        self,
        providers: tuple[Provider, ...],
        inside_costs: tuple[InsideCost, ...],
        synchronous: bool,
    ) -> None:
        self._providers = providers
        self._inside_costs = inside_costs
        self._synchronous = synchronous
        self._warnings: dict[TraceWarning, None] = {}
        self._counts: list[WarningCount] = []
        self._sampled = [pl.DataFrame(schema=SAMPLE_SCHEMA)]
        self._called: frozenset[Kind] = frozenset()  # kinds of the pass that calls are told of

    def read(self, visit: Visit) -> VisitRows:
        rows = self._rows(visit)
        self._note_lost(visit)
        accounts = self._accounts([visit])
        return VisitRows(rows, tuple(self._warnings), tuple(self._counts), accounts)

    def interpret(self, visits: Sequence[Visit]) -> Interpretation:
        visits = [without_pauses(visit) for visit in visits]
        chosen = counting(visits)
        self._note_cold_start(chosen)
        watched = [each.planned.pass_.kinds for each in chosen if each.planned.pass_.system]
        self._called = max(watched, key=len, default=frozenset())
        # A CUDA graph is captured once, usually while warming up, and only replayed later.
        warm = self._warm_captures(visits)
        runs = [run for batch in _batches(chosen) for run in self._runs(batch)]
        known = captures([*warm, *(run.rows for run in runs if run.rows is not None)])
        if nodes := unseen(runs, known):
            self._warnings[TraceWarning("graph-unseen", _UNSEEN.format(counted(nodes, "node")))] = (
                None
            )
        return Interpretation(
            tuple(with_captured(runs, known)),
            tuple(self._warnings),
            tuple(self._counts),
            pl.concat(self._sampled),
        )

    def _runs(self, visits: Sequence[Visit]) -> Iterator[Run]:
        """Yield the runs of visits of one pass; the rows of all visits are correlated at once."""
        windows = [
            (visit, number, *window, waited)
            for visit in visits
            for number, (window, waited) in enumerate(
                zip(visit.windows, visit.waited_ns, strict=True)
            )
        ]
        pass_ = visits[0].planned.pass_
        # The bare pass records nothing: its runs have latencies, but no rows.
        frames: Sequence[SpanRows | None] = [None] * len(windows)
        if pass_.kinds:
            rows = concat_rows([self._rows(visit) for visit in visits])
            if visits[0].shared:  # such a visit is alone in its batch
                rows = _of_thread(rows, visits[0].thread)
            called = rows["kind"] == Kind.SYSCALL.value
            calls, rows = rows.filter(called), rows.filter(~called) if pass_.system else rows
            trees = correlate(_roots(visits), rows, synchronous=self._synchronous)
            self._note(visits, trees)
            frames = trees.frames
        chosen: Iterable[tuple[int, SpanRows | None]] = enumerate(frames)
        if pass_.sampled:  # all steps of one group and structure make one run
            chosen = self._with_self_time(visits, [w[1] for w in windows], trees.frames)
        if pass_.system:  # likewise
            kind = max(pass_.kinds - {Kind.SYSCALL}, key=lambda kind: kind.order)
            # Calls lie in the innermost spans, as the deepest of these passes has them.
            chosen = with_accounts(
                trees.frames,
                kind,
                self._accounts(visits),
                calls,
                with_calls=pass_.kinds == self._called,
            )
        for at, frame in chosen:
            visit, number, begin, end, waited = windows[at]
            faults = visit.page_faults
            yield Run(
                pass_,
                latency_ns=end - begin,
                rows=frame,
                round=visit.rounds[number] if visit.rounds else visit.planned.round,
                began_ns=begin,
                host_ns=end - begin - waited,
                page_faults=None if faults is None else faults / len(visit.windows),
                group=visit.groups[number] if visit.groups else 0,
                model_calls=visit.model_calls[number] if visit.model_calls else 1,
            )

    def _warm_captures(self, visits: Sequence[Visit]) -> list[pl.DataFrame]:
        """Return the trees of warm-up steps in which CUDA graphs were captured."""
        chosen = {id(visit) for visit in counting(visits)}
        frames: list[pl.DataFrame] = []
        for visit in worth_keeping(visits):
            if id(visit) not in chosen:
                # Only captures are used of warm-up visits: other lost records do no harm.
                self._note_lost(visit, level=Level.KERNEL)
                rows = self._rows(visit)
                if any_captured(rows):
                    frames += correlate(_roots([visit]), rows, synchronous=self._synchronous).frames
        return frames

    def _rows(self, visit: Visit) -> SpanRows:
        rows = concat_rows([self._rows_of(visit.planned.pass_, *kept) for kept in visit.records])
        rows, left_out = within_memory(rows, max(len(visit.windows), 1))
        for kind, count in left_out.items():
            message = _LEFT_OUT.format(f"{count:,}", kind.value, f"{MOST_SPANS:,}")
            self._warnings[TraceWarning("spans-left-out", message)] = None
        return _without_later(rows_without_pauses(place_by_order(rows), visit), visit)

    def _with_self_time(
        self, visits: Sequence[Visit], numbers: Sequence[int], frames: Sequence[SpanRows]
    ) -> Iterator[tuple[int, SpanRows]]:
        """Yield trees with the functions of self time, each with the index of its step."""
        samples = self._samples(visits)
        owners = [visit for visit in visits for _ in visit.windows]
        groups = [
            visit.groups[number] if visit.groups else 0
            for visit, number in zip(owners, numbers, strict=True)
        ]
        for group in dict.fromkeys(groups):
            members = [at for at, each in enumerate(groups) if each == group]
            for first, frame in with_self_time([frames[at] for at in members], samples):
                yield members[first], frame

    def _samples(self, visits: Sequence[Visit]) -> Samples:
        """Return the samples that all providers took in visits of one pass, and keep them."""
        shown = [pl.DataFrame(schema=SAMPLE_SCHEMA)]
        for visit in visits:
            for kept in visit.records:
                if isinstance(kept[0], Sampler):
                    samples = self._samples_of(visit.planned.pass_, *kept)
                    self._sampled.append(samples)
                    shown.append(samples_without_pauses(samples, visit))
        return pl.concat(shown)

    def _accounts(self, visits: Sequence[Visit]) -> Accounts:
        """Return what the operating system charged to threads in visits of one pass."""
        found = [pl.DataFrame(schema=ACCOUNT_SCHEMA)]
        for visit in visits:
            pass_ = visit.planned.pass_
            found += [self._accounts_of(pass_, *kept) for kept in visit.records]
        return pl.concat(found)

    def _accounts_of(self, pass_: Pass, provider: Provider, records: Records) -> Accounts:
        none = pl.DataFrame(schema=ACCOUNT_SCHEMA)
        if not isinstance(provider, Accountant):
            return none
        return guarded(
            lambda: provider.accounts(records).select(*ACCOUNT_SCHEMA),
            lambda error: self._failed(provider, pass_, error, none),
        )

    def _samples_of(self, pass_: Pass, provider: Provider, records: Records) -> Samples:
        none = pl.DataFrame(schema=SAMPLE_SCHEMA)
        if not isinstance(provider, Sampler):
            return none
        return guarded(
            lambda: provider.samples(records).select(*SAMPLE_SCHEMA),
            lambda error: self._failed(provider, pass_, error, none),
        )

    def _rows_of(self, pass_: Pass, provider: Provider, records: Records) -> SpanRows:
        def rows() -> SpanRows:
            made = provider.spans(records)
            return made if made is no_rows() else checked(made)

        found = guarded(rows, lambda error: self._failed(provider, pass_, error, no_rows()))
        if found is no_rows():
            return found
        return self._with_inside_costs(self._with_own_ids(found, provider), provider)

    def _with_own_ids(self, rows: SpanRows, provider: Provider) -> SpanRows:
        """Return rows whose ids differ from all other providers' ids; the root keeps the id 0."""
        if rows["id"].null_count() == rows.height:
            return rows
        # Providers number their rows from 1; the remainder tells the providers apart.
        place, count = self._providers.index(provider), len(self._providers)
        ids = pl.col("id", "parent_id")
        if (rows.select(pl.max_horizontal(ids.max())).item() or 0) > _LARGEST // count - 1:
            rows = _renumbered(rows)
        return rows.with_columns(pl.when(ids > 0).then(ids * count + place).otherwise(ids))

    def _with_inside_costs(self, rows: SpanRows, provider: Provider) -> SpanRows:
        """Return rows with what recording each one cost between its ends, where that is known."""
        costs = {
            cost.kind: (cost.cost_ns, cost.error_ns)
            for cost in self._inside_costs
            if cost.provider == provider.name
        }
        return with_inside_costs(rows, costs) if costs and rows.height else rows

    def _note(self, visits: Sequence[Visit], trees: Trees) -> None:
        """Count the rows that visits of one pass lost, and those whose parent is not certain."""
        pass_ = visits[0].planned.pass_
        for visit in visits:
            self._note_lost(visit)
        # A device activity without a launch is an orphan too, but is counted once.
        self._count("orphans", pass_, trees.orphans - trees.unlaunched)
        self._count("no-launch", pass_, trees.unlaunched)
        self._count("ambiguous", pass_, trees.ambiguous_parents)
        self._count("ambiguous-thread", pass_, trees.ambiguous_threads)

    def _note_lost(self, visit: Visit, level: Level | None = None) -> None:
        """Note what the providers of one level, or of all levels, could not record in a visit."""
        for provider, records in visit.records:
            if level in (None, provider.level):
                for sentence in records.warnings:
                    self._warnings[TraceWarning("provider", sentence)] = None
                for sentence in records.notes:
                    self._warnings[TraceWarning(NOTE, sentence)] = None
                if visit.shared:  # other threads' calls, cut when the providers were disarmed
                    continue
                self._count("dropped", visit.planned.pass_, records.dropped, provider.name)

    def _count(self, code: str, pass_: Pass, count: int, provider: str = "") -> None:
        if count:
            self._counts.append(WarningCount(code, pass_.name, count, provider))

    def _failed(self, provider: Provider, pass_: Pass, error: Exception, none: Samples) -> Samples:
        """Note that a provider failed, which costs its level only."""
        sentence = (
            f"xsp could not read the records of {provider.name} in the {pass_.name} pass; its "
            f"spans are missing, the others right. Please report: {type(error).__name__}: {error}"
        )
        self._warnings[TraceWarning("provider-failed", sentence)] = None
        return none

    def _note_cold_start(self, visits: Sequence[Visit]) -> None:
        """Note the passes seen only in the first step, where other passes were seen later."""
        cold = dict.fromkeys(
            visit.planned.pass_.name for visit in visits if not visit.planned.counts
        )
        if cold and any(visit.planned.counts for visit in visits):
            sentence = (
                f"only the first step ran in the {', '.join(cold)} pass, while libraries set up: "
                "its times are those of a cold start. Use more steps or a larger budget."
            )
            self._warnings[TraceWarning("cold-start", sentence)] = None


def _without_later(rows: SpanRows, visit: Visit) -> SpanRows:
    """Leave out what the program did next, in the time that awaiting devices was added for."""
    if not any(visit.waited_ns):
        return rows
    waited = np.array(visit.waited_ns)
    begins, ends = np.array(visit.windows).T
    start = rows["start_ns"].to_numpy()
    number = np.searchsorted(begins, start, side="right") - 1
    late = (start > (ends - waited)[number]) & (start < ends[number]) & (number >= 0)
    if not late.any():
        return rows
    here = rows["kind"].is_in(_PROGRAM) & (rows["thread"] == visit.thread).fill_null(value=False)
    return rows.filter(~(late & here.to_numpy()))


def _renumbered(rows: SpanRows) -> SpanRows:
    """Return rows whose ids are small numbers; equal ids stay equal, and the root's stays 0."""
    known = pl.concat([rows["id"], rows["parent_id"].rename("id")]).unique().drop_nulls().sort()
    known = known.filter(known != 0)
    number = pl.int_range(1, len(known) + 1, eager=True)
    ids = pl.col("id", "parent_id")
    return rows.with_columns(ids.replace(known, number))


def _of_thread(rows: SpanRows, thread: int) -> SpanRows:
    """Return the rows of one thread, what was derived from them, and operators that state them.

    Operators of a graph run on threads of a pool, in a row on the thread that ran the graph.
    """
    of = rows["thread"].eq_missing(thread).to_numpy().copy()
    derived = (rows["provenance"] == Provenance.DERIVED.value).fill_null(value=False).to_numpy()
    inside = derived | (rows["kind"] == Kind.OP.value).to_numpy()
    while derived.any():
        held = rows.filter(pl.Series(of))
        more = derived & _among(rows["id"], held["parent_id"])
        more |= inside & _among(rows["parent_id"], held["id"].filter(held["id"] != 0))
        if not (more & ~of).any():
            break
        of |= more
    return rows.filter(pl.Series(of))


def _among(values: pl.Series, known: pl.Series) -> Bools:
    """Return which values are among the known; null is not."""
    found = values.is_in(known.drop_nulls().implode())
    result: Bools = found.fill_null(value=False).to_numpy()
    return result


def _roots(visits: Sequence[Visit]) -> SpanRows:
    windows = [
        (visit, name, *window)
        for visit in visits
        for name, window in zip(
            visit.names or [visit.name] * len(visit.windows), visit.windows, strict=True
        )
    ]
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": [name for _, name, _, _ in windows],
            "start_ns": [begin for _, _, begin, _ in windows],
            "end_ns": [end for _, _, _, end in windows],
            "thread": [visit.thread for visit, _, _, _ in windows],
        }
    )


def _batches(visits: Iterable[Visit]) -> Iterator[list[Visit]]:
    """Yield visits of one pass together, until they have `_BATCH` steps."""
    # Passes are kept apart: their rows have different kinds, and so different trees.
    waiting: dict[Pass, list[Visit]] = {}
    for visit in visits:
        if visit.shared:  # its steps lie beside others in time
            yield [visit]
            continue
        batch = waiting.setdefault(visit.planned.pass_, [])
        batch.append(visit)
        if sum(len(member.windows) for member in batch) >= _BATCH:
            yield waiting.pop(visit.planned.pass_)
    yield from waiting.values()
