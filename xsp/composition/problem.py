"""Problems of a program: its journal, groups and their traces in; what to say of them out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from xsp.composition.group import Group
from xsp.composition.journal import Journal
from xsp.composition.usual import FEWEST
from xsp.errors import MeasurementError
from xsp.evaluation import trimmed_mean
from xsp.problem import Problem
from xsp.session import Session
from xsp.text import counted, duration, margin
from xsp.trace import Trace

Floats = NDArray[np.float64]

REPEATED_APART = "repeated-apart"

_ALIKE = 1.05  # times as long: such latencies are not told apart
_FAR = 1.25  # times as long as repetitions: such latencies are, whatever their intervals
_REPEATED = (
    "{}: an evaluation took {} in the program, and {} where it was repeated after the block, by "
    "which the parts of it are told mostly, drawn longer or shorter in proportion: what the "
    "program does between two of them leaves its data in the caches, or the machine's speed "
    "changed; replay=False keeps to the program's own"
)
_AVERAGE = (
    "{}: an evaluation took {} on average in the program, as its tree has it, and {} without the "
    "slowest and the quickest, as `prof.groups` has it"
)
_RECORDED = (
    "{}: an evaluation took {} on average in the program, as its tree has it, and {} by those of "
    "them that its plan could use, as `prof.groups` has it"
)

_NAMED = 3  # groups of which nothing was recorded that have a sentence each
_OPTIMIZER_STEP, _FEW_STEPS = "optimizer step", 3

_RAISED = "{} of {} raised, and their time is in none of its evaluations"
_OUTSIDE = (
    "{} of optimizers lie outside of all evaluations, as what they train was not called as a "
    "module (but by its `forward`, or there is none): `with prof.evaluation():` marks evaluations"
)
_CUT_SHORT = (
    "the block was left by {} before the plan was complete: latencies rest on fewer evaluations"
)
_NOTHING = (
    "no model was called in the block. Call one in it, mark what counts with `with "
    "prof.evaluation():`, or use xsp.measure(function, ...)"
)
_CHILDREN = (
    "processes that the program started took {} of processor time, and what they did is not "
    "known: xsp watches the process that it is started in. Where they run models, start them by "
    "`torchrun … -m xsp profile`, or put `with xsp.profile():` into what they run"
)
_PRESUPPOSES_ALIKE = frozenset({"residual", "prediction"})  # problems that unlike runs have anyway
_MUCH = 0.1  # of a block's time: as much of children's is worth a word
_UNRECORDED = (
    "what lies inside is not known, for none of its evaluations was recorded; more of them, or a "
    "larger budget=, would change that"
)
_UNMADE = (
    "the trees of {} were not made: only the {} groups that took most time have one. Profile a "
    "part of the program, or pad inputs to fewer shapes, to see the others. Their latencies hold "
    f"what recording added where fewer than {FEWEST} of their evaluations ran unrecorded"
)


def journal_problems(journal: Journal, groups: Iterable[Group]) -> list[Problem]:
    """Return what there is to say of a program but for its groups.

    That is what raised, steps outside of evaluations, and processes that xsp does not see.
    """
    result = [
        Problem("raised", _RAISED.format(counted(count, "call"), model))
        for model, count in journal.raised.items()
    ]
    if journal.left_by:
        result.append(Problem("cut-short", _CUT_SHORT.format(journal.left_by)))
    if said := _of_children(journal):
        result.append(Problem("child-processes", said))
    steps = sum(mark.name == _OPTIMIZER_STEP for mark in journal.marks)
    if steps >= _FEW_STEPS and steps > sum(group.calls for group in groups if group.trains):
        result.append(Problem("steps-outside", _OUTSIDE.format(counted(steps, "step"))))
    return result


def group_problems(
    groups: Mapping[str, Group],
    traces: Mapping[int, Trace],
    recorded: Collection[int],
    middle: Mapping[int, tuple[int, int]],
) -> list[Problem]:
    """Return the problems of the groups, with the names of groups if there are several.

    Args:
        groups: The groups by their names.
        traces: The traces of groups, by their numbers.
        recorded: The numbers of the groups of which something was recorded.
        middle: The least and the most calls of the evaluations that are compared, by the number of
            the group (`typical.middling`).
    """
    result: list[Problem] = []
    for label, group in groups.items():
        trace = traces.get(group.number)
        if trace is None:
            continue
        several = f"{label}: " if len(groups) > 1 else ""
        result += [
            Problem(problem.code, f"{several}{problem.message}")
            for problem in trace.problems
            if problem.code != "level-left-out"  # which the program's trace says itself
        ]
        if group.varies:
            unlike = _unlike(group, middle.get(group.number))
            result.append(Problem("unlike-inputs", f"{label}: {unlike}"))
    result += _unrecorded([name for name, group in groups.items() if group.number not in recorded])
    if unmade := len(recorded) - len(traces):
        said = _UNMADE.format(counted(unmade, "further group"), len(traces))
        result.append(Problem("groups-left-out", said))
    return result


def of_unlike_runs(trace: Trace) -> Trace:
    """Return the trace of unlike evaluations, without the problems that presuppose like ones."""
    problems = [
        each for each in trace.metadata["problems"] if each["code"] not in _PRESUPPOSES_ALIKE
    ]
    return Trace(trace.spans, {**trace.metadata, "problems": problems}, trace.typical_runs)


def latency_problems(
    groups: Mapping[str, Group],
    traces: Mapping[int, Trace],
    took_ns: Mapping[int, Floats],
    repeated: Mapping[int, int],
) -> dict[int, Problem]:
    """Return what there is to say of groups whose evaluations and traces differ, by their numbers.

    Args:
        groups: The groups by their names.
        traces: The traces of groups, by their numbers.
        took_ns: How long the evaluations of each group take (`typical.evaluation_times`).
        repeated: How often groups were repeated after the program, by their numbers.
    """
    result = {}
    for label, group in groups.items():
        number = group.number
        if number not in traces or group.varies:
            continue
        again = bool(repeated.get(number))
        if found := told_apart(label, took_ns[number], traces[number], repeated=again):
            result[number] = found
    return result


def told_apart(label: str, took_ns: Floats, trace: Trace, *, repeated: bool) -> Problem | None:
    """Return what there is to say where a group's evaluations and its trace differ, if they do.

    They do where the average and the latency are more than 5 % apart and lie out of each other's
    interval, or are more than 25 % apart and it was repeated.

    Args:
        label: Name of the group.
        took_ns: How long its evaluations take, shape `[evaluations]`.
        trace: The trace of one evaluation.
        repeated: Whether it was repeated after the program.
    """
    root = trace.root
    reach_ns = margin(root.latency_ns, root.latency_low_ns, root.latency_high_ns)
    if not root.latency_ns or reach_ns is None:
        return None
    mean_ns, typical_ns = float(took_ns.mean()), float(trimmed_mean(took_ns[:, None])[0])
    far = _FAR if repeated else math.inf
    if _are_alike(mean_ns, root.latency_ns, reach_ns, far):
        return None
    found = label, duration(mean_ns), duration(root.latency_ns)
    if _are_alike(typical_ns, root.latency_ns, reach_ns, far):
        return Problem("average-apart", _AVERAGE.format(*found))
    if repeated:
        return Problem(REPEATED_APART, _REPEATED.format(*found))
    return Problem("average-apart", _RECORDED.format(*found))


def nothing_evaluated(journal: Journal, session: Session) -> MeasurementError:
    """Return the error for a program of which no trace can be made."""
    if journal.raised:
        return MeasurementError(
            f"no evaluation came to its end: each call of {', '.join(journal.raised)} "
            "raised, or was cut short. Mend that, or profile more of what the program does"
        )
    why = _NOTHING
    if journal.left_by:
        why = f"the block was left by {journal.left_by} before a model was called"
    also = [_of_children(journal), *(problem.message for problem in session.problems)]
    said = "".join(f" ({each})" for each in also if each)
    return MeasurementError(f"nothing was evaluated: {why}{said}")


def _of_children(journal: Journal) -> str:
    """Return what there is to say of the processes that a program started, if they did much."""
    took_ns = 0.0 if journal.loading else journal.children_s * 1e9
    much = took_ns >= _MUCH * (journal.end_ns - journal.begin_ns)
    return _CHILDREN.format(duration(took_ns)) if took_ns and much else ""


def _unlike(group: Group, middle: tuple[int, int] | None) -> str:
    """Return what it means that the evaluations of a group are unlike."""
    kinds, calls = len(group.inputs), group.by_calls
    several = [f"the inputs had {counted(kinds, 'set')} of shapes"] * (kinds > 1)
    if len(calls) > 1:
        several.append(f"evaluations call the model {min(calls)} to {max(calls)} times")
    average = "its latencies are averages over all sizes"
    if middle is not None:
        low, high = middle
        average = f"what lies inside is an average over evaluations of {low} to {high} calls"
    return (
        f"{' and '.join(several)}, too unlike to be groups, so that {average}; "
        "metadata['groups'] has a latency per size"
    )


def _unrecorded(names: Sequence[str]) -> list[Problem]:
    """Return what there is to say of groups of which nothing was recorded."""
    found = [f"{name}: {_UNRECORDED}" for name in names[:_NAMED]]
    more = len(names) - _NAMED
    if more > 0:
        found.append(f"nothing was recorded of the evaluations of {counted(more, 'further group')}")
    return [Problem("not-recorded", message) for message in found]


def _are_alike(own_ns: float, latency_ns: float, reach_ns: float, far: float) -> bool:
    """Return whether two latencies are about the same; the first is known as well as the second."""
    times = max(own_ns, latency_ns) / max(min(own_ns, latency_ns), 1.0)
    within = abs(own_ns - latency_ns) <= reach_ns * (1.0 + own_ns / latency_ns)
    return times < _ALIKE or (within and times < far)
