"""The outcome: a journal and visits of a program in, traces of the program and its groups out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.composition.collective import collectives
from xsp.composition.group import Group, Groups, labels
from xsp.composition.journal import (
    Evaluation,
    Journal,
    took_ns,
    waits_for_others,
    waits_within,
    with_pause_overhead,
    with_waits,
)
from xsp.composition.nested import Made, Part, first_calls, parts, with_iterations
from xsp.composition.own_time import Sampled
from xsp.composition.problem import (
    REPEATED_APART,
    group_problems,
    journal_problems,
    latency_problems,
    nothing_evaluated,
    of_unlike_runs,
)
from xsp.composition.summary import facts, sentences
from xsp.composition.timeline import Timeline
from xsp.composition.tree import compose
from xsp.composition.typical import (
    Average,
    average_evaluation,
    balanced,
    counting,
    disturbed,
    evaluation_times,
    middling,
    own_latencies,
    times_by_size,
    unlike,
    unsettled,
    with_mean_latency,
    without,
)
from xsp.composition.usual import GroupLatency
from xsp.evaluation import Run, united
from xsp.measurement import ProcessRuns, build_trace, describe, interpret
from xsp.problem import Problem, problems_of
from xsp.session import Selection, Session, Settings, Visit, describe_environment
from xsp.trace import Trace, made_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MERGED = 24  # groups whose trees are made: those that took most time

_WITHIN = "within this run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a profiled program came to.

    Attributes:
        program: The trace of the whole program.
        groups: The trace of one evaluation of each group, by the name of the group; groups that
            took most time first. Of groups of which nothing was recorded there is none.
        collectives: The collectives that were recorded (`rank.COLLECTIVE_SCHEMA`).
        rungs: For each group, by its number, the rung of each of its evaluations in the order of
            time; an empty name where nothing was armed.
        began_ns: When the program began, on the session's clock.
    """

    program: Trace
    groups: dict[str, Trace]
    collectives: pl.DataFrame
    rungs: dict[int, list[str]]
    began_ns: int


@dataclass(frozen=True, slots=True)
class Purpose:
    """What was to be measured, and how.

    Attributes:
        name: Name of the program, for people.
        selection: The providers and rungs that were selected.
        settings: How each group was measured.
        repeated: How often groups were repeated after the program, by their numbers.
    """

    name: str
    selection: Selection
    settings: Settings
    repeated: Mapping[int, int]


def program_traces(journal: Journal, groups: Groups, session: Session, purpose: Purpose) -> Outcome:
    """Return the traces of a program.

    Args:
        journal: What the program did.
        groups: The groups of its evaluations.
        session: The session, all of whose visits have ended.
        purpose: What was to be measured, and how.

    Raises:
        MeasurementError: There is nothing to make a trace of.
    """
    if not (journal.evaluations or journal.marks or journal.spans.records):
        raise nothing_evaluated(journal, session)
    return _Maker(journal, groups, session, purpose).make()


class _Maker:
    """The making of an outcome: what all steps need."""

    def __init__(
        self, journal: Journal, groups: Groups, session: Session, purpose: Purpose
    ) -> None:
        journal = with_pause_overhead(journal)
        self._waits = waits_for_others(journal)
        journal = with_waits(journal, waits_within(journal, self._waits))
        made = journal.evaluations
        final, anew = groups.final, unsettled(made, groups.final)
        self._middle = middling(without(journal, anew).evaluations, final)
        apart = anew | unlike(made, final, self._middle)
        like = without(journal, apart).evaluations
        self._left_out = apart | disturbed(like, final, compared=True)
        self._journal = without(journal, anew | disturbed(made, final))
        known = {(each.thread, each.begin_ns): each for each in made}
        self._visits = [_completed(visit, known) for visit in session.visits]
        self._session = session
        self._settings = purpose.settings
        self._repeated = purpose.repeated
        self._final = groups.final
        self._groups = _by_time(groups, took_ns(journal.evaluations, groups.final))
        self._name_of = {group.number: label for label, group in self._groups.items()}
        self._numbers = [groups.final(each.group) for each in made]
        self._process = ProcessRuns(
            runs=(),
            problems=(),
            subject=purpose.name,
            levels=purpose.selection.levels,
            environment=describe_environment(),
            origin=session.origin,
        )

    def make(self) -> Outcome:
        """Return the outcome."""
        visits = counting(self._visits, self._final, self._left_out)
        visits = balanced(visits, self._final, self._average_calls())
        found = interpret(
            visits, self._session.providers, inside_costs=self._session.inside_costs()
        )
        recorded = self._recorded(found.runs)
        traces = self._traces(recorded)
        averages = self._averages(traces, recorded)
        latencies = {number: _latency(trace) for number, trace in traces.items()}
        timeline = Timeline(self._journal, latencies, self._final, self._waits)
        nested = self._nested()
        lasting = timeline.lasting(*_times(nested))
        first = first_calls(nested, lasting.tolist(), self._numbers, traces)
        spans = compose(
            nested,
            lasting,
            self._made(timeline, first),
            traces,
            averages,
            Sampled(found.samples, tuple(self._journal.lulls), tuple(self._journal.pauses)),
        )
        took_ns = evaluation_times(timeline.evaluations_ns, self._numbers, nested, first)
        apart = latency_problems(self._groups, traces, took_ns, self._repeated)
        means = {number: float(took_ns[number].mean()) for number in averages}
        groups = self._facts(traces, timeline, apart, means)
        problems = [
            *journal_problems(self._journal, self._groups.values()),
            *self._session.problems,
            *found.problems,
            *problems_of(found.counts),
            *group_problems(self._groups, traces, recorded, self._middle),
            *apart.values(),
        ]
        metadata = self._described(traces, problems) | made_of(spans)
        metadata["groups"] = groups
        metadata["summary"] = sentences(groups, nested, lasting, timeline, first)
        made = self._journal.evaluations
        return Outcome(
            Trace(spans, metadata),
            {self._name_of[number]: trace for number, trace in traces.items()},
            collectives(found.runs, visits, made, self._final, self._name_of),
            self._rungs(),
            self._journal.begin_ns,
        )

    def _nested(self) -> list[Part]:
        """Return all parts of the program, iterations of its loops among them."""
        plain = parts(self._journal, "block", [self._name_of[at] for at in self._numbers])
        of = {group.number: group for group in self._groups.values()}
        return with_iterations(plain, [of[number] for number in self._numbers])

    def _made(self, timeline: Timeline, first: Mapping[int, float]) -> Made:
        """Return what the tree is told of the evaluations."""
        return Made(
            groups=self._numbers,
            ran_ns=[each.ran_ns for each in self._journal.evaluations],
            estimated=timeline.estimated,
            varying={group.number for group in self._groups.values() if group.varies},
            first=first,
        )

    def _facts(
        self,
        traces: Mapping[int, Trace],
        timeline: Timeline,
        apart: Mapping[int, Problem],
        means: Mapping[int, float],
    ) -> list[dict[str, Any]]:
        """Return what is known of each group.

        Args:
            traces: The traces of groups, by their numbers.
            timeline: How long evaluations take without xsp.
            apart: What is said of groups whose evaluations and traces differ, by their numbers.
            means: Mean latency (ns) of the groups that have an average evaluation, by number.
        """
        times = times_by_size(self._journal, timeline, self._final)
        own = own_latencies(
            timeline, {at for at, said in apart.items() if said.code == REPEATED_APART}
        )
        groups = facts(self._groups, times, own, traces, self._repeated)
        numbers = [self._groups[each["name"]].number for each in groups]
        return [
            with_mean_latency(each, means[number]) if number in means else each
            for number, each in zip(numbers, groups, strict=True)
        ]

    def _described(
        self, traces: Mapping[int, Trace], problems: Sequence[Problem]
    ) -> dict[str, Any]:
        """Return the metadata of the program's trace that every trace has."""
        metadata = describe(
            [self._process],
            self._settings,
            problems,
            rungs=next(iter(traces.values())).metadata["rungs"] if traces else [],
            intervals=_WITHIN,
        )
        if self._journal.pause_overhead_ns:
            metadata["pause_overhead_ns"] = self._journal.pause_overhead_ns
        return metadata

    def _average_calls(self) -> dict[int, float]:
        """Return how often groups whose evaluations differ in that call their model on average."""
        members = self._groups.values()
        return {each.number: each.average_calls for each in members if len(each.by_calls) > 1}

    def _averages(
        self, traces: Mapping[int, Trace], recorded: Mapping[int, Sequence[Run]]
    ) -> dict[int, Average]:
        """Return an average evaluation of each such group, if it has a trace."""
        return {
            number: average_evaluation(traces[number], recorded[number], calls)
            for number, calls in self._average_calls().items()
            if number in traces
        }

    def _rungs(self) -> dict[int, list[str]]:
        """Return the rung of each evaluation of each group."""
        result: defaultdict[int, list[str]] = defaultdict(list)
        for each in sorted(self._journal.evaluations, key=lambda each: each.begin_ns):
            result[self._final(each.group)].append(each.rung.name if each.rung else "")
        return dict(result)

    def _recorded(self, runs: Sequence[Run]) -> dict[int, list[Run]]:
        """Return the runs of the groups of which some evaluation was recorded, by number."""
        of: defaultdict[int, list[Run]] = defaultdict(list)
        for run in runs:
            of[self._final(run.group)].append(run)
        return {
            number: mine
            for number, mine in of.items()
            if any(run.rows is not None and run.rung.timed for run in mine)
        }

    def _traces(self, recorded: Mapping[int, Sequence[Run]]) -> dict[int, Trace]:
        """Return the traces of the recorded groups that took most time, by their numbers."""
        members = [item for item in self._groups.items() if item[1].number in recorded]
        result = {}
        for label, group in members[:_MERGED]:
            runs = tuple(recorded[group.number])
            process = replace(self._process, runs=runs, subject=label)
            trace = build_trace([process], self._settings)
            result[group.number] = of_unlike_runs(trace) if group.varies else trace
        return result


def _completed(visit: Visit, known: Mapping[tuple[int, int], Evaluation]) -> Visit:
    """Return a visit with the calls and pauses of its evaluations, known by thread and begin."""
    made = [known.get((visit.thread, begin)) for begin, _ in visit.windows]
    calls = tuple(1 if each is None else each.size[0] for each in made)
    more = [pause for each in made if each is not None for pause in each.pauses]
    pauses = tuple(united([*visit.pauses, *more])) if more else visit.pauses
    return replace(visit, model_calls=calls, pauses=pauses)


def _times(nested: Sequence[Part]) -> tuple[Ints, Ints, Ints]:
    """Return thread, begin and end (ns) of each part."""
    times = [(part.thread, part.start_ns, part.end_ns) for part in nested]
    thread, start_ns, end_ns = np.array(times, dtype=np.int64).T
    return thread, start_ns, end_ns


def _by_time(groups: Groups, took: Mapping[int, int]) -> dict[str, Group]:
    """Return the groups by their names, that with most time first."""
    members = [group for group in groups.current() if group.calls]
    named = zip(labels(members), members, strict=True)
    return dict(sorted(named, key=lambda item: -took.get(item[1].number, 0)))


def _latency(trace: Trace) -> GroupLatency:
    rungs = {
        rung["rung"]: rung["latency_ns"]
        for rung in trace.metadata["rungs"]
        if rung.get("latency_ns") is not None
    }
    return GroupLatency(trace.root.latency_ns or 0.0, rungs)
