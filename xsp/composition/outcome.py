"""The outcome: a journal and visits of a program in, traces of the program and its groups out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.composition.collective import collectives
from xsp.composition.group import Group, Groups, labels
from xsp.composition.iteration import with_iterations
from xsp.composition.journal import (
    Evaluation,
    Journal,
    took_ns,
    waits_for_others,
    waits_within,
    with_pause_overhead,
    with_waits,
)
from xsp.composition.own_time import Sampled
from xsp.composition.part import first_calls, parts
from xsp.composition.summary import facts, sentences
from xsp.composition.timeline import FEWEST, GroupLatency, Timeline
from xsp.composition.tree import Made, compose
from xsp.composition.typical import (
    REPEATED_APART,
    Average,
    average_evaluation,
    balanced,
    counting,
    disturbed,
    evaluation_times,
    middling,
    own_latencies,
    times_by_size,
    told_apart,
    unlike,
    unsettled,
    with_mean_latency,
    without,
)
from xsp.errors import MeasurementError
from xsp.evaluation import Run, united
from xsp.measurement import ProcessRuns, build_trace, describe, interpret
from xsp.problem import Problem, problems_of
from xsp.session import Selection, Session, Settings, Visit, describe_environment
from xsp.text import counted
from xsp.trace import Trace, made_of

Floats = NDArray[np.float64]

_MERGED = 24  # groups whose trees are made: those that took most time
_NAMED = 3  # groups of which nothing was recorded that have a sentence each

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
        raise _nothing(journal, session)
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
        session = self._session
        visits = counting(self._visits, self._final, self._left_out)
        visits = balanced(visits, self._final, self._average_calls())
        found = interpret(visits, session.providers, inside_costs=session.inside_costs())
        raised = [
            Problem("raised", _RAISED.format(counted(count, "call"), model))
            for model, count in self._journal.raised.items()
        ]
        general = [*raised, *session.problems, *found.problems, *problems_of(found.counts)]
        general += _unseen_steps(self._journal, self._groups.values())
        recorded = self._recorded(found.runs)
        traces = self._traces(recorded)
        timeline = Timeline(
            self._journal,
            {number: _latency(trace) for number, trace in traces.items()},
            self._final,
            self._waits,
        )
        numbers = [self._final(each.group) for each in self._journal.evaluations]
        name_of = {group.number: label for label, group in self._groups.items()}
        of = {group.number: group for group in self._groups.values()}
        plain = parts(self._journal, "block", [name_of[number] for number in numbers])
        nested = with_iterations(plain, [of[number] for number in numbers])
        threads, starts, ends = np.array(
            [(part.thread, part.start_ns, part.end_ns) for part in nested], dtype=np.int64
        ).T
        lasting = timeline.lasting(threads, starts, ends)
        ran_ns = [each.ran_ns for each in self._journal.evaluations]
        sampled = Sampled(found.samples, tuple(self._journal.lulls), tuple(self._journal.pauses))
        varying = {number for number, group in of.items() if group.varies}
        averages = self._averages(traces, recorded)
        shown = traces | {number: average.trace for number, average in averages.items()}
        spans = compose(nested, lasting, Made(numbers, ran_ns, varying, averages), shown, sampled)
        first = first_calls(nested, lasting.tolist(), numbers, traces)
        took_ns = evaluation_times(timeline.evaluations_ns, numbers, nested, first)
        apart = self._apart(traces, took_ns)
        repeated_apart = {at for at, said in apart.items() if said.code == REPEATED_APART}
        times = times_by_size(self._journal, timeline, self._final)
        own = own_latencies(timeline, repeated_apart)
        groups = facts(self._groups, times, own, traces, self._repeated)
        for at, each in enumerate(groups):
            if (number := self._groups[each["name"]].number) in averages:
                groups[at] = with_mean_latency(each, float(took_ns[number].mean()))
        metadata = describe(
            [self._process],
            self._settings,
            [*general, *self._of_groups(traces, recorded), *apart.values()],
            rungs=next(iter(traces.values())).metadata["rungs"] if traces else [],
            intervals=_WITHIN,
        )
        metadata |= made_of(spans)
        metadata["groups"] = groups
        if self._journal.pause_overhead_ns:
            metadata["pause_overhead_ns"] = self._journal.pause_overhead_ns
        metadata["summary"] = sentences(groups, nested, lasting, timeline, first)
        made = self._journal.evaluations
        return Outcome(
            Trace(spans, metadata),
            {name_of[number]: trace for number, trace in traces.items()},
            collectives(found.runs, visits, made, self._final, name_of),
            self._rungs(),
            self._journal.begin_ns,
        )

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
            result[group.number] = build_trace([process], self._settings)
        return result

    def _of_groups(
        self, traces: Mapping[int, Trace], recorded: Mapping[int, Sequence[Run]]
    ) -> list[Problem]:
        """Return the problems of the groups, with the names of groups if there are several."""
        result: list[Problem] = []
        for label, group in self._groups.items():
            trace = traces.get(group.number)
            if trace is None:
                continue
            several = f"{label}: " if len(self._groups) > 1 else ""
            result += [
                Problem(problem.code, f"{several}{problem.message}")
                for problem in trace.problems
                if problem.code != "level-left-out"  # which the program's trace says itself
            ]
            if group.varies:
                result.append(Problem("unlike-inputs", f"{label}: {self._unlike(group)}"))
        missing = [label for label, group in self._groups.items() if group.number not in recorded]
        return [*result, *_unrecorded(missing), *_unmade(len(recorded) - len(traces))]

    def _unlike(self, group: Group) -> str:
        """Return what it means that the evaluations of a group are unlike."""
        kinds, calls = len(group.inputs), group.by_calls
        several = [f"the inputs had {counted(kinds, 'set')} of shapes"] * (kinds > 1)
        if len(calls) > 1:
            several.append(f"evaluations call the model {min(calls)} to {max(calls)} times")
        average = "its latencies are averages over all sizes"
        if group.number in self._middle:
            low, high = self._middle[group.number]
            average = f"what lies inside is an average over evaluations of {low} to {high} calls"
        return (
            f"{' and '.join(several)}, too unlike to be groups, so that {average}; "
            "metadata['groups'] has a latency per size"
        )

    def _apart(
        self, traces: Mapping[int, Trace], took_ns: Mapping[int, Floats]
    ) -> dict[int, Problem]:
        """Return what is said of groups whose evaluations and traces differ, by their numbers."""
        result = {}
        for label, group in self._groups.items():
            trace, repeated = traces.get(group.number), bool(self._repeated.get(group.number))
            if trace is None or group.varies:
                continue
            if found := told_apart(label, took_ns[group.number], trace, repeated=repeated):
                result[group.number] = found
        return result


def _completed(visit: Visit, known: Mapping[tuple[int, int], Evaluation]) -> Visit:
    """Return a visit with the calls and pauses of its evaluations, known by thread and begin."""
    made = [known.get((visit.thread, begin)) for begin, _ in visit.windows]
    calls = tuple(1 if each is None else each.size[0] for each in made)
    more = [pause for each in made if each is not None for pause in each.pauses]
    pauses = tuple(united([*visit.pauses, *more])) if more else visit.pauses
    return replace(visit, model_calls=calls, pauses=pauses)


def _by_time(groups: Groups, took: Mapping[int, int]) -> dict[str, Group]:
    """Return the groups by their names, that with most time first."""
    members = [group for group in groups.current() if group.calls]
    named = zip(labels(members), members, strict=True)
    return dict(sorted(named, key=lambda item: -took.get(item[1].number, 0)))


_RAISED = "{} of {} raised, and their time is in none of its evaluations"
_OPTIMIZER_STEP, _FEW_STEPS = "optimizer step", 3
_OUTSIDE = (
    "{} of optimizers lie outside of all evaluations, as what they train was not called as a "
    "module (but by its `forward`, or there is none): `with prof.evaluation():` marks evaluations"
)
_UNRECORDED = (
    "what lies inside is not known, for none of its evaluations was recorded; more of them, or a "
    "larger budget=, would change that"
)


def _unseen_steps(journal: Journal, groups: Iterable[Group]) -> list[Problem]:
    """Return what there is to say where optimizers mostly step outside of evaluations."""
    steps = sum(mark.name == _OPTIMIZER_STEP for mark in journal.marks)
    if steps < _FEW_STEPS or steps <= sum(group.calls for group in groups if group.trains):
        return []
    return [Problem("steps-outside", _OUTSIDE.format(counted(steps, "step")))]


def _unrecorded(names: Sequence[str]) -> list[Problem]:
    """Return what there is to say of groups of which nothing was recorded."""
    found = [f"{name}: {_UNRECORDED}" for name in names[:_NAMED]]
    more = len(names) - _NAMED
    if more > 0:
        found.append(f"nothing was recorded of the evaluations of {counted(more, 'further group')}")
    return [Problem("not-recorded", message) for message in found]


def _unmade(count: int) -> list[Problem]:
    """Return what there is to say of groups that were recorded, and whose trees were not made."""
    if not count:
        return []
    return [
        Problem(
            "groups-left-out",
            f"the trees of {counted(count, 'further group')} were not made: only the "
            f"{_MERGED} groups that took most time have one. Profile a part of the program, or "
            "pad inputs to fewer shapes, to see the others. Their latencies hold what recording "
            f"added where fewer than {FEWEST} of their evaluations ran unrecorded",
        )
    ]


def _latency(trace: Trace) -> GroupLatency:
    rungs = {
        rung["rung"]: rung["latency_ns"]
        for rung in trace.metadata["rungs"]
        if rung.get("latency_ns") is not None
    }
    return GroupLatency(trace.root.latency_ns or 0.0, rungs)


def _nothing(journal: Journal, session: Session) -> MeasurementError:
    """Return the error for a program of which no trace can be made."""
    if journal.raised:
        return MeasurementError(
            f"no evaluation came to its end: each call of {', '.join(journal.raised)} "
            "raised, or was cut short. Mend that, or profile more of what the program does"
        )
    failed = "".join(f" ({problem.message})" for problem in session.problems)
    return MeasurementError(
        "nothing was evaluated: no model was called in the block. Call one in it, mark "
        "what counts with `with prof.evaluation():`, or use xsp.measure(function, ...)" + failed
    )
