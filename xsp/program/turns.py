"""Turns: the plan of a group in, the rung on which each evaluation of the program is recorded out.

In a program's loop each evaluation follows another one, and where that one was recorded on another
rung, what it left in the caches makes the next one slower. So a rung keeps its turn for some
evaluations, of which the first do not count.

    evaluation   0    1      2    3      4    5      6    7
    rung         op   bare   bare layer  layer op    op   bare …
    counts       no   no     yes  no     yes  no     yes  no

Where evaluations of several groups come in turns, all of them stay on a rung until each group has
had its evaluations there. A group joins in whose round has still to visit the rung; a group that is
through with it, or that comes seldom and is in the midst of another visit, is a guest meanwhile.

In a distributed program rank 0 deals, one turn ahead, and the others do as it does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from xsp.composition import SLOW_NS, Group, Groups
from xsp.evaluation import FEWEST_ROUNDS, Rung
from xsp.provider import ModelCall
from xsp.rank import Agreement, Turn
from xsp.session import Plan, PlannedVisit, Settings, schedule

# Evaluations for this long, six at most, replace what another rung left in the caches, and take
# again the pages of memory that were given back.
_UNTIMED_NS = 12_000_000
_FEWEST_UNTIMED, _MOST_UNTIMED = 3, 6
WARM = -2  # round of evaluations that the user wants not to count
_MOST_TIMED = 10
_BARE = 4  # timed evaluations in the first round of which nothing is recorded
_SELDOM = 6  # evaluations between two of a group that comes seldom
_MOST_AT_ONCE = 8  # threads for which visits grow
_TIMED_NS = 12_000_000  # timed evaluations of a turn together, once the first rounds are made


class StepKind(NamedTuple):
    """What is known of a training step when it has ended, as `Evaluations.end` is told."""

    variant: str = ""
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What is recorded of one evaluation.

    Attributes:
        rung: The rung.
        round: Round of the group's plan, -1 for warming up.
        counts: Whether the latency counts.
    """

    rung: Rung
    round: int
    counts: bool


class Turns:
    """Deals the rungs of a plan out over the evaluations of one group.

    Args:
        rungs: The ladder, bare rung first, and untimed rungs.
        settings: When the plan is complete.
        agreement: What the ranks of a distributed program agree on; None: there is one process.
        group: Number of the group, the same in all ranks.

    Attributes:
        plan: The plan of the group.
        evaluations: How many evaluations were recorded.
    """

    def __init__(
        self,
        rungs: Sequence[Rung],
        settings: Settings,
        agreement: Agreement | None = None,
        group: int = 0,
    ) -> None:
        self.plan = Plan(rungs, settings, repeatable=False, ahead=0 if agreement is None else 1)
        self._rungs, self._agreement, self._group = tuple(rungs), agreement, group
        self._turn: Turn | None = None  # that was agreed on
        self._left: list[Turn | None] = []  # what rank 0 has decided
        self._agreed = 0  # turns that were begun
        self._through = False  # whether rank 0 has said that the plan is complete
        self.evaluations = 0
        self._visit: PlannedVisit | None = None
        self._last: PlannedVisit | None = None  # the visit before
        self._untimed = 0
        self._since = 0  # evaluations since another rung was armed, or xsp made plans
        self._threads: set[int] = set()  # those that evaluated in the visit under way
        self._at_once = 1  # threads that evaluated in the last visit
        self._latencies: list[int] = []
        self._began_ns = 0
        self._spent_ns = 0
        self._typical_ns = 0.0

    @property
    def done(self) -> bool:
        """Whether the plan is complete."""
        if self._agreement is not None:
            return self._through
        return self._visit is None and self.plan.done

    @property
    def left(self) -> int:
        """How many more evaluations the visit under way wants at least; 0 between two visits."""
        return self._untimed + self._sized() - len(self._latencies) if self._visit else 0

    def holds(self, rung: Rung) -> bool:
        """Return whether the group needs more evaluations before another rung is recorded."""
        return self._visit is not None and self._visit.rung == rung

    def again(self, rung: Rung) -> Step:
        """Return the step of one more evaluation on a rung, of which no plan was asked before."""
        step = self.step(rung) if self.holds(rung) else None
        return step or Step(rung, WARM, counts=False)

    def step(self, armed: Rung | None, *, often: bool = True, held: bool = False) -> Step | None:
        """Return what to record of the next evaluation, None if the plan is complete.

        Where another group holds the rung that is armed, this one joins in on it, or is a guest.

        Args:
            armed: The rung that is recorded now, which goes first where the order is free.
            often: Whether evaluations of the group come close together; of a group that comes
                seldom none is left out, for each one comes after something else.
            held: Whether another group, whose evaluations come between, needs that rung still.
        """
        away = not often and not (armed is not None and self.holds(armed))
        held &= self.evaluations > 0 or self._agreement is not None  # the first may be the only one
        if held and armed is not None and (away if self._visit else not self._joins(armed)):
            last = self._last
            if last is None or not last.counts or last.rung != armed:
                return Step(armed, WARM, counts=False)
            counts = not self._left_out(armed, last, often=often) or self._agreement is not None
            return Step(armed, last.round if counts else WARM, counts=counts)
        if self._visit is None and not self._begin(armed, often=often):
            return None
        assert self._visit is not None
        visit = self._visit
        return Step(visit.rung, visit.round, visit.counts and not self._untimed)

    def record(self, step: Step, began_ns: int, ended_ns: int, thread: int = 0) -> None:
        """Note the evaluation made at this step.

        Args:
            step: As `step` returned it.
            began_ns: When the evaluation began, on the session's clock.
            ended_ns: When it ended.
            thread: Its thread: each of those that evaluate at once has to settle on a rung.
        """
        visit = self._visit
        self._since += 1
        if visit is None or (visit.rung, visit.round) != (step.rung, step.round):
            return  # a warm-up of the user's, or another thread has ended the turn
        self.evaluations += 1
        self._threads.add(thread)
        self._spent_ns += ended_ns - began_ns
        self._note_typical(ended_ns - began_ns)
        if self._untimed:
            self._untimed -= 1
            return
        self._began_ns = self._began_ns or began_ns
        self._latencies.append(ended_ns - began_ns)
        if len(self._latencies) >= self._sized():
            self._end(visit, ended_ns)

    def note_change(self) -> None:
        """Note that providers were armed anew: what they left in the caches is to be replaced."""
        self._since = 0

    def _joins(self, armed: Rung) -> bool:
        """Return whether the round has still to visit the armed rung, and let it come next then."""
        if self._agreement is not None:
            return False
        self.plan.prefer(armed)
        visit = self.plan.next()
        return visit is not None and visit.rung == armed

    def _begin(self, armed: Rung | None, *, often: bool) -> bool:
        if self._agreement is not None:
            return self._begin_agreed(self._agreement)
        self.plan.prefer(armed)
        self._visit = self.plan.next()
        if self._visit is None:
            return False
        self._latencies, self._began_ns, self._spent_ns = [], 0, 0
        self._untimed = self._left_out(armed, self._visit, often=often)
        return True

    def _left_out(self, armed: Rung | None, visit: PlannedVisit, *, often: bool) -> int:
        """Return how many more evaluations of a visit do not count, as its rung was armed anew."""
        if not often or not visit.counts or not visit.rung.timed:
            return 0
        untimed = self._uncounted(visit) * self._at_once
        return max(0, untimed - (self._since if armed == visit.rung else 0))

    def _begin_agreed(self, agreement: Agreement) -> bool:
        """Begin the turn that all ranks agreed on; return whether there is one."""
        if self._through:
            return False
        self._turn = self._decided(agreement) if agreement.leads else self._told(agreement)
        self._agreed += 1
        if self._turn is None:
            self._through = True
            return False
        self._visit = PlannedVisit(self._rungs[self._turn.rung], round=self._turn.round)
        self._latencies, self._began_ns, self._spent_ns = [], 0, 0
        self._untimed = self._turn.untimed
        return True

    def _told(self, agreement: Agreement) -> Turn | None:
        """Return the turn that rank 0 decided on; the first is the same in every plan."""
        if self._agreed == 0:
            return self._as_turn(self.plan.coming[0], None)
        return agreement.turn(self._group, self._agreed)

    def _decided(self, agreement: Agreement) -> Turn | None:
        """Return the next turn, and leave the one after for the other ranks."""
        coming: list[PlannedVisit | None] = [*self.plan.coming, None, None]
        while len(self._left) <= self._agreed + 1:
            visit = coming[len(self._left) - self._agreed]
            turn = None
            if visit is not None:
                turn = self._as_turn(visit, self._left[-1] if self._left else None)
            agreement.leave(self._group, len(self._left), turn)
            self._left.append(turn)
        return self._left[self._agreed]

    def _as_turn(self, visit: PlannedVisit, before: Turn | None) -> Turn:
        settles = before is not None and visit.counts and visit.rung.timed
        untimed = self._uncounted(visit) * self._at_once if settles else 0
        return Turn(self._rungs.index(visit.rung), visit.round, self._size(visit), untimed)

    def _end(self, visit: PlannedVisit, ended_ns: int) -> None:
        self._visit, self._last, self._since = None, visit, 0
        self._at_once = min(len(self._threads), _MOST_AT_ONCE)
        self._threads.clear()
        self.plan.record(
            visit,
            self._latencies,
            began_ns=self._began_ns,
            ended_ns=ended_ns,
            spent_ns=self._spent_ns,
        )

    def _note_typical(self, latency_ns: int) -> None:
        self._typical_ns = float(min(self._typical_ns or latency_ns, latency_ns))

    def _uncounted(self, visit: PlannedVisit) -> int:
        """Return how many evaluations after a change of the rung do not count."""
        if not self._typical_ns or self._typical_ns > SLOW_NS:
            return 0
        # Few at first, for the program may end soon. What slows evaluations on all rungs alike
        # is taken for the cost of recording, but not where nothing is recorded.
        most = 1 + visit.round // 2 + (0 if visit.rung.kinds else 1 + min(visit.round, 2))
        return min(
            most, _MOST_UNTIMED, max(_FEWEST_UNTIMED, math.ceil(_UNTIMED_NS / self._typical_ns))
        )

    def _sized(self) -> int:
        """Return how many timed evaluations the turn has."""
        return self._size(self._visit) if self._turn is None else self._turn.evaluations

    def _size(self, visit: PlannedVisit | None) -> int:
        if visit is None or not visit.counts or not visit.rung.timed or not self._typical_ns:
            return 1
        fewest, most = 1, _MOST_TIMED
        if visit.round < FEWEST_ROUNDS and visit.rung.kinds:
            most = min(most, max(1, self._uncounted(visit)))
        elif visit.round < FEWEST_ROUNDS:  # they say what the program, which may end, takes alone
            fewest = _BARE if self._uncounted(visit) else 2
            most = min(most, _BARE + 2 * visit.round)
        return min(most, max(fewest, math.ceil(_TIMED_NS / self._typical_ns))) * self._at_once


class Plans:
    """The plans of all groups: which rung is recorded of the next evaluation.

    Args:
        rungs: The ladder, bare rung first, and untimed rungs.
        settings: When a plan is complete.
        when: Which evaluations are measured.

    Attributes:
        groups: The groups of like evaluations.
        turns: The plan of each group, by the group's number.
        agreement: What the ranks of a distributed program agree on; None: there is one process.
        before: What kind of training step was the last one.
    """

    def __init__(self, rungs: Sequence[Rung], settings: Settings, when: schedule) -> None:
        self.groups = Groups()
        self.turns: dict[int, Turns] = {}
        self.agreement: Agreement | None = None
        self.before = StepKind()
        self._kinds: dict[tuple[str, StepKind], StepKind] = {}  # by the model, and the step before
        self._last_kinds: dict[str, StepKind] = {}  # of the last step that began with the model
        self._last_unnamed: Group | None = None
        self._guessed = False  # whether something was recorded of an evaluation of unknown group
        self._rungs, self._settings, self._when = tuple(rungs), settings, when
        self._recent: deque[int] = deque(maxlen=_SELDOM)  # groups of the last evaluations

    def note_change(self) -> None:
        """Note that providers were armed anew."""
        for turns in self.turns.values():
            turns.note_change()

    def forget(self) -> None:
        """Forget all evaluations so far."""
        self.groups, self.turns = Groups(), {}

    def expected(self, call: ModelCall | None) -> Group | None:
        """Return the group that an evaluation is likely to be of, if that is known.

        Args:
            call: Its first call of a model; None: it begins without one.
        """
        if call is None:  # as the last one that began without a call
            return self._last_unnamed
        kind = StepKind()
        if not call.whole_model:
            # Where steps have ever another number of calls, no step before was like the last one.
            last = self._last_kinds.get(call.subject, kind)
            kind = self._kinds.get((call.subject, self.before), last)
        return self.groups.find(call, *kind)

    def of(self, number: int) -> Turns:
        """Return the plan of a group."""
        number = self.groups.final(number)
        if number not in self.turns:
            self.turns[number] = Turns(self._rungs, self._settings, self.agreement, number)
        return self.turns[number]

    def step(self, group: Group | None, seen: int, armed: Rung | None) -> Step | None:
        """Return what to record of the next evaluation, if anything.

        Args:
            group: The group that it is likely to be of; None: unknown.
            seen: How many evaluations came before.
            armed: The rung that is recorded now.
        """
        if not self._when.records(seen) or (group is None and self._guessed):
            return None
        # The first that begins without a call may be the only one: something is recorded of it,
        # whatever other groups hold, and it counts for none.
        if group is None:
            self._guessed = True
            return Turns(self._rungs, self._settings).step(None)
        number = self.groups.final(group.number)
        others = set(self._recent) - {number}
        held = armed is not None and any(self.of(other).holds(armed) for other in others)
        step = self.of(number).step(armed, often=number in self._recent, held=held)
        if step is not None and not self._when.counts(seen):
            step = replace(step, round=WARM, counts=False)
        return step

    def count(self, call: ModelCall, kind: StepKind | None) -> Group:
        """Count an evaluation that has ended, and return its group.

        Args:
            call: Its first call of a model.
            kind: What kind of training step it was; None: a single call.
        """
        variant, calls = kind or StepKind()
        group = self.groups.count(self.groups.find(call, variant, calls), call, calls)
        self._recent.append(self.groups.final(group.number))
        return group

    def learn(self, call: ModelCall, kind: StepKind | None, group: Group, *, unnamed: bool) -> None:
        """Note what to expect of evaluations that begin as the last one did.

        Args:
            call: Its first call of a model.
            kind: What kind of training step it was; None: a single call.
            group: Its group.
            unnamed: Whether it began without a call.
        """
        if unnamed:
            self._last_unnamed = group
        elif kind is not None:
            self._kinds[call.subject, self.before] = self._last_kinds[call.subject] = kind
        self.before = kind or self.before

    @property
    def complete(self) -> bool:
        """Whether all plans are complete, and no other rank of a distributed program goes on."""
        seen = [group.number for group in self.groups.current() if group.calls]
        through = bool(seen) and all(self.of(number).done for number in seen)
        return through and (self.agreement is None or self.agreement.may_stop())
