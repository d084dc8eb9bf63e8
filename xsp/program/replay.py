"""Repetitions after a block: a call of each group in, the visits that its plan lacks out.

A block cannot run twice, but a call can, if repeating changes nothing of the user's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace

from xsp.composition import labels, took_ns
from xsp.measurement import (
    Progress,
    carry_out,
    irreversible,
    iterator_type,
    progress_bar,
    read_arguments,
)
from xsp.program.dispatcher import Dispatcher
from xsp.program.turns import Turns
from xsp.provider import NO_BACKWARD, ModelCall
from xsp.rank import identity, in_process_group
from xsp.session import Session
from xsp.text import counted, duration

# Of repeating all groups together, unless the user has said how long: people wait meanwhile.
_LEAST_S, _MOST_S = 5.0, 20.0
_LEAST_SHARE = 0.05  # of the budget, for a group that took next to no time
_AT_ONCE = "several threads called it, which a repetition on one thread would not show"
_BY_PROGRAM = "it is more than one call, and only the program itself can make all of them again"
_TRAINS = (
    "it was called in training mode with gradients on, where a call may change its model: "
    "`model.eval()` and `with torch.no_grad():` are for calls that train nothing"
)
_NOT_KEPT = (
    "its call was not kept, as only those of the groups that took most time are, so that memory "
    "suffices"
)
_ONCE = "nothing is repeated where the schedule says how many evaluations are measured (active=)"
_TRAINING_STEP = "training step"
_IN_COMPANY = "this is a rank of a distributed program, and the others would have to repeat theirs"


def complete_plans(
    dispatcher: Dispatcher,
    budget_s: float | None,
    *,
    replay: bool | None,
    progress: bool | Progress | None,
    once: bool = False,
) -> dict[int, int]:
    """Repeat calls until the plans of their groups are complete, or note why not.

    Args:
        dispatcher: The dispatcher, all of whose evaluations have ended.
        budget_s: Seconds of repeating, which are divided by the time that the groups took; None:
            as many as they took in the block, within limits.
        replay: Whether calls may be repeated; None: where that is safe.
        progress: As for `xsp.profile`.
        once: Whether to repeat nothing, whatever `replay` says, as a schedule that ends does.

    Returns:
        How often each group was repeated, by its number.
    """
    names = _names(dispatcher)
    took = took_ns(dispatcher.journal.evaluations, dispatcher.plans.groups.final)
    if budget_s is None:
        budget_s = min(max(took.total() / 1e9, _LEAST_S), _MOST_S)
    repeated: dict[int, int] = {}
    left: list[tuple[int, str]] = []
    at_once = _called_at_once(dispatcher)
    for number in sorted(names, key=lambda number: -took[number]):
        turns = dispatcher.plans.turns.get(number)
        if turns is None or turns.done:
            continue
        reason = _ONCE if once else _hazard(dispatcher, number, replay, at_once)
        if reason is not None:
            left.append((number, reason))
            continue
        share = max(took[number] / max(took.total(), 1), _LEAST_SHARE)
        repeated[number] = _repeat(
            dispatcher, number, turns, budget_s * share, progress, insist=bool(replay)
        )
    _note(dispatcher, names, left)
    return repeated


def _names(dispatcher: Dispatcher) -> dict[int, str]:
    groups = [group for group in dispatcher.plans.groups.current() if group.calls]
    return dict(zip((group.number for group in groups), labels(groups), strict=True))


def _repeat(
    dispatcher: Dispatcher,
    number: int,
    turns: Turns,
    budget_s: float,
    progress: bool | Progress | None,
    *,
    insist: bool,
) -> int:
    """Repeat the call that is kept of a group, and return how often."""
    session, plan, call = dispatcher.session, turns.plan, dispatcher.calls.get(number)
    assert call is not None  # or there had been a reason not to
    before = len(session.visits)
    plan.repeatable = True
    plan.settings = replace(plan.settings, budget_s=plan.spent_ns / 1e9 + budget_s)
    with ExitStack() as stack:
        # Also what was recorded until Ctrl-C is part of the group.
        stack.callback(_tag, session, before, number, call)
        report = stack.enter_context(progress_bar(progress, f"repeating {call.subject}"))
        stack.enter_context(call.conditions())
        try:
            changed = carry_out(plan, session, call, report, insist=insist)
        except Exception as error:  # noqa: BLE001  # the user's own call had succeeded
            session.problem(
                "replay-failed",
                f"repeating {call.subject} raised {type(error).__name__}: {error}; "
                "the trace holds what there was until then. replay=False leaves it out",
            )
        else:
            _note_changed(session, call, changed)
    return sum(len(visit.windows) + visit.planned.untimed for visit in session.visits[before:])


def _tag(session: Session, before: int, number: int, call: ModelCall) -> None:
    """Note of the visits since some number of them that they were of one call of a group."""
    for at, visit in enumerate(session.visits[before:], before):
        count = len(visit.windows)
        rounds = (visit.planned.round,) * count
        names = (call.name,) * count
        session.visits[at] = replace(visit, groups=(number,) * count, rounds=rounds, names=names)


def _hazard(
    dispatcher: Dispatcher, number: int, replay: bool | None, at_once: Collection[int]
) -> str | None:
    """Return why the call that is kept of a group must not be repeated, None if it may be."""
    call = dispatcher.calls.get(number)
    if call is None:
        return _why_no_call(dispatcher, number)
    # The user's answer goes before everything that can be found out.
    if replay is not None:
        return None if replay else "replay=False"
    if number in at_once:
        return _AT_ONCE
    if identity() is not None or in_process_group():
        return _IN_COMPANY
    danger, unread = read_arguments(lambda: _danger(dispatcher.session, call))
    if unread:
        return f"whether it may be cannot be told, as {unread}. Say replay=True if it may"
    return danger


def _why_no_call(dispatcher: Dispatcher, number: int) -> str:
    """Return why there is no call of a group to be repeated."""
    group = dispatcher.plans.groups.members[number]
    if group.variant == NO_BACKWARD:
        return _TRAINS
    # Of programs that mark their evaluations no call is kept.
    return _NOT_KEPT if len(dispatcher.calls) and group.phase != _TRAINING_STEP else _BY_PROGRAM


def _called_at_once(dispatcher: Dispatcher) -> set[int]:
    """Return the numbers of the groups that several threads called."""
    final = dispatcher.plans.groups.final
    calls = {(final(each.group), each.thread) for each in dispatcher.journal.evaluations}
    return {number for number, count in Counter(number for number, _ in calls).items() if count > 1}


def _danger(session: Session, call: ModelCall) -> str | None:
    """Return what repeating a call would change, None if nothing."""
    if iterator_type(call) is not None:
        return f"{call.subject} was given an iterator, which is used up"
    if (reason := call.hazard()) is not None:
        return f"{reason}. Say replay=True if it may be"
    if kept := irreversible(session, call):
        return f"what it may change could not be put back: {kept}. Say replay=True if it may be"
    return None


def _note_changed(session: Session, call: ModelCall, changed: str) -> None:
    """Note what a repeated call changed of its input or of itself."""
    if changed:
        session.problem(
            "replayed-as-left",
            f"{call.subject} changes its input or itself ({changed}): each repetition began with "
            "that as the program's call had left it, and it was put back afterwards",
        )


def _note(dispatcher: Dispatcher, names: dict[int, str], left: Sequence[tuple[int, str]]) -> None:
    for number, reason in left:
        if reason == _BY_PROGRAM and not _is_short(dispatcher, number):
            continue  # nobody can do more than let the loop run longer: intervals say that
        name = f"{names[number]}: " if len(names) > 1 else ""
        dispatcher.session.problem(
            "not-replayed",
            f"{name}there were fewer evaluations than its plan has: "
            f"{_shortage(dispatcher, number)}; and none was repeated after the block: {reason}",
        )


def _is_short(dispatcher: Dispatcher, number: int) -> bool:
    """Return whether a group has too few evaluations to visit each rung."""
    fewest = dispatcher.plans.turns[number].plan.fewest_evaluations
    return dispatcher.plans.groups.members[number].calls < fewest


def _shortage(dispatcher: Dispatcher, number: int) -> str:
    """Return why the evaluations of the program did not complete the plan of a group."""
    turns = dispatcher.plans.turns[number]
    seen = dispatcher.plans.groups.members[number].calls
    if _is_short(dispatcher, number):
        return f"{seen} of {turns.plan.fewest_evaluations} or more"
    if turns.plan.brief and turns.plan.lasted_s:  # else the first round never came
        lasted = duration(1e9 * turns.plan.lasted_s)
        return f"they took {lasted} together, and a machine's speed moves over seconds"
    return f"after {counted(seen, 'evaluation')} the model is not known as well as asked for yet"
