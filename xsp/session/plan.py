"""The plan: latencies of the evaluations so far in, the next visit out.

A plan says which rung is visited next, for how many evaluations, and when the measurement is
enough. Three rounds of a ladder with the rungs bare, layer and op:

    warming up   op, bare, bare, bare, layer      gives no latencies
    round 0      bare, layer, op
    round 1      op, layer, bare                  the other way round
    round 2      layer, bare, op                  shuffled
    round 3      op, bare, layer                  the other way round
    closing      detail, stack, bare              what costs time, samples; did the machine drift?
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xsp.evaluation import (
    FEWEST_ROUNDS,
    Rung,
    Series,
    SlowLevel,
    half_width,
    slow_level,
    trimmed_mean,
)
from xsp.level import Kind
from xsp.session.settings import Settings
from xsp.session.visit import PlannedVisit

VISIT_NS = 5_000_000  # timed evaluations of a visit together, if the model is quicker
VISIT_EVALUATIONS = 20  # most timed evaluations of a visit
UNTIMED_NS = 3_000_000  # evaluations for this long replace what the last visit left in the caches
SLOW_NS = 500_000_000  # a model slower than this does not notice what is in the caches
SLOW_PARTS = 20  # nor has a budget with room for fewer evaluations any to spare for warming up
MOST_UNTIMED = 100  # evaluations before the timed ones of a visit
SPREAD_S = 3.0  # the rounds take at least so long: within less, a machine shows one mood
ROUNDS = 30  # in that time at most; between rounds the bare model runs, unrecorded
LATER_ROUNDS = 100  # in the budget at most, where the machine's speed moves more than rounds do
MOST_ROUNDS = 400  # interpreting more rounds takes longer than measuring them
SAMPLED_NS = 500_000_000  # samples of what Python runs are taken for this long
SAMPLED_SHARE = 0.05  # of the budget, at most
MOST_SAMPLED = 2000  # evaluations in which samples are taken, at most
SAMPLED_APART = 8  # evaluations in a row, or more quick ones, where the program has to make them
QUICK_SAMPLED_NS = 5_000_000  # for which these are sampled
SAMPLED_APART_NS = 100_000_000  # for which samples are taken then
FIRST_SAMPLED, SAMPLED_ROUNDS = 1, 3  # round in which that is done first, and after how many again
FEW_SAMPLED = 2  # evaluations at first, if they are quick: the program may end soon


class Plan:
    """Asks for visits until the model's latency on every rung is known well enough.

    Each round visits every rung once, in an order of its own, and every second round in the
    reverse order of the one before, so that drift of the machine, and what one rung leaves in the
    caches, hits all rungs alike. The bare rung comes first (the deepest, if the model is warm) and
    last. Rounds are spread over seconds, for a fraction of one shows that moment alone.

    Args:
        rungs: The ladder, bare rung first; rungs that give no latency may be among them.
        settings: When the measurement is enough.
        repeatable: Whether the caller can evaluate the model as often as the plan asks; else
            every visit is one evaluation.
        ahead: How many visits are known, as long as some are left, beyond the next one.
    """

    def __init__(
        self, rungs: Sequence[Rung], settings: Settings, *, repeatable: bool, ahead: int = 0
    ) -> None:
        self._ahead = ahead
        self.settings = settings
        self.repeatable = repeatable
        self._warm = repeatable and not settings.warmup  # so that the deepest rung comes first
        self.latencies: dict[Rung, list[int]] = defaultdict(list)
        self._rounds: dict[Rung, list[int]] = defaultdict(list)
        self._began_ns: dict[Rung, list[int]] = defaultdict(list)
        self.spent_ns = 0
        self._begun = -1  # the latest round of which a visit was made
        self._first_ns = 0  # when the first round began
        self._latest_ns = 0  # when the latest round began
        self._spent_before_ns = 0  # until the latest round began
        self._now_ns = 0  # when the last visit ended
        self._timed = [rung for rung in rungs if rung.timed]
        self._detailed = [rung for rung in rungs if rung.detail]
        self._sampling = [rung for rung in rungs if rung.sampled]
        self._sampled_ns = 0.0  # for how long samples were taken
        self._round = -1
        self._quickest_ns: int | None = None  # latency of a warm-up evaluation
        self._ask_at = FEWEST_ROUNDS
        self._last_round = False
        self._slow = False
        # A first evaluation on a device may compile; that of a CPU tells of the others.
        self._unjudged = int(any(Kind.KERNEL in rung.kinds for rung in rungs))
        self._level_dominates = False  # whether the machine moves more than rounds differ
        self._queue = self._warming()
        if ahead:
            self._queue += self._next_round()

    @property
    def done(self) -> bool:
        """Whether no visit is left."""
        return not self._queue

    @property
    def fraction(self) -> float:
        """How much of the plan is done, from 0 to 1, estimated."""
        if self.done:
            return 1.0
        by_time = self.spent_ns / 1e9 / self.settings.budget_s
        if self.settings.runs:
            fewest = min(len(self.latencies[rung]) for rung in self._timed)
            return min(0.99, max(by_time, fewest / self.settings.runs))
        return min(0.99, by_time)

    @property
    def fewest_evaluations(self) -> int:
        """How many evaluations the plan takes at least if each visit is one; budget aside."""
        rounds = self.settings.runs or FEWEST_ROUNDS
        return 1 + rounds * len(self._timed) + 1

    @property
    def lasted_s(self) -> float:
        """Seconds since the first round began."""
        return (self._now_ns - self._first_ns) / 1e9 if self._first_ns else 0.0

    @property
    def brief(self) -> bool:
        """Whether the rounds took less time than it takes to see how the machine's speed moves."""
        return not self.settings.runs and self.lasted_s < self._spread_s

    @property
    def fell_short(self) -> bool:
        """Whether the budget ran out before there were as many evaluations as asked for."""
        fewest = min((len(self.latencies[rung]) for rung in self._timed), default=0)
        return self.done and fewest < (self.settings.runs or 0)

    def next(self) -> PlannedVisit | None:
        """Return the next visit, or None when the measurement is enough."""
        return self._queue[0] if self._queue else None

    @property
    def coming(self) -> Sequence[PlannedVisit]:
        """The visits that are known, the next one first."""
        return tuple(self._queue)

    def prefer(self, rung: Rung | None) -> None:
        """Let a rung come first in the round under way, if the round has not visited it yet."""
        first = self._queue[0].round if self._queue else None
        for at, planned in enumerate(self._queue):
            if planned.rung == rung and planned.round == first:
                self._queue.insert(0, self._queue.pop(at))
                return

    def record(
        self,
        planned: PlannedVisit,
        latencies: Sequence[int],
        *,
        began_ns: int,
        ended_ns: int,
        spent_ns: int | None = None,
    ) -> None:
        """Take note that a visit was made.

        Args:
            planned: The visit, as `next` gave it.
            latencies: Model latencies of the timed evaluations of the visit, in ns.
            began_ns: When the visit began, on the session's clock.
            ended_ns: When the visit ended.
            spent_ns: What of that time counts against the budget; None: all of it.
        """
        if self._queue and self._queue[0] == planned:
            self._queue.pop(0)
        lasted_ns = ended_ns - began_ns if spent_ns is None else spent_ns
        self.spent_ns += lasted_ns
        self._sampled_ns += lasted_ns * planned.rung.sampled
        self._now_ns = ended_ns
        if planned.counts and planned.round != self._begun:
            self._begun, self._latest_ns = planned.round, began_ns
            self._spent_before_ns = self.spent_ns - lasted_ns
            self._first_ns = self._first_ns or began_ns
        self._note_slowness(latencies)
        if latencies and not planned.counts:
            self._quickest_ns = min(self._quickest_ns or latencies[0], *latencies)
        if planned.counts:
            self.latencies[planned.rung].extend(latencies)
            self._rounds[planned.rung].extend([planned.round] * len(latencies))
            self._began_ns[planned.rung].extend([began_ns] * len(latencies))
        if len(self._queue) <= self._ahead and not self._last_round:
            self._queue += self._closing() if self._enough() else self._next_round()

    def _note_slowness(self, latencies: Sequence[int]) -> None:
        if self._unjudged:
            self._unjudged -= 1
            return
        if latencies and min(latencies) > self._slow_ns and not self._slow:
            self._slow = True  # such a model is warm after one call; a profiler is once armed
            self._queue = [
                each if each.counts else replace(each, evaluations=0)
                for each in self._queue
                if each.counts or each.rung.kinds
            ]

    @property
    def _slow_ns(self) -> float:
        """Latency above which evaluations are dear, and none is made that does not count."""
        if self.settings.runs or not self.repeatable:
            return SLOW_NS
        return min(SLOW_NS, self.settings.budget_s * 1e9 / SLOW_PARTS)

    def _warming(self) -> list[PlannedVisit]:
        # A profiler's first use in a process can take seconds. The first evaluation is on the
        # deepest rung: if no other follows, because the program makes none, or the call changes
        # what cannot be put back, the trace is made of it. On a device the first evaluations
        # capture CUDA graphs, and only their records tell what later replays stand for.
        if not self.repeatable:
            return [PlannedVisit(self._timed[-1])]
        if self._warm:  # profilers are armed
            return [PlannedVisit(rung, 0) for rung in self._timed]
        deepest = max((*self._timed, *self._detailed, *self._sampling), key=lambda rung: rung.order)
        on_device = Kind.KERNEL in deepest.kinds
        first = deepest if on_device else self._timed[-1]
        often = deepest if on_device else self._timed[0]
        others = [rung for rung in self._timed if rung not in (first, often)]
        more = self.settings.warmup - (first == often)
        return [PlannedVisit(rung) for rung in (first, *[often] * more, *others)]

    def _next_round(self) -> list[PlannedVisit]:
        self._round += 1
        visits = self._visits(self._round, latency_ns=self._typical())
        if not self.repeatable:  # the program may end before the closing visits
            if self._round == FIRST_SAMPLED:
                visits += self._details()
            if self._round % SAMPLED_ROUNDS == FIRST_SAMPLED:
                visits += self._samples()
        due_ns = self._latest_ns + math.ceil(1e9 * self._round_s)
        if self._round == 0 or due_ns <= self._now_ns:
            return visits
        return [PlannedVisit(self._timed[0], 0, pause_until_ns=due_ns), *visits]

    @property
    def _round_s(self) -> float:
        """Seconds from the beginning of a round to that of the next, at least."""
        if not self.repeatable or self.settings.runs:
            return 0.0
        if self.lasted_s < self._spread_s:
            return self._spread_s / ROUNDS
        # More rounds help against noise; against a level that moves slowly only time does.
        return self.settings.budget_s / LATER_ROUNDS if self._level_dominates else 0.0

    @property
    def _spread_s(self) -> float:
        return min(SPREAD_S, self.settings.budget_s)

    def _typical(self) -> float | None:
        known = self.latencies[self._timed[0]]
        return float(np.median(known)) if known else self._quickest_ns

    def _visits(self, number: int, latency_ns: float | None) -> list[PlannedVisit]:
        order = self._timed
        if number > 1:  # shuffled, so that no rung always follows the same rung
            order = random.Random(number // 2).sample(order, len(order))
        # The other way round, so that drift makes no rung slower; deepest first if nothing was
        # recorded before, for there may be one evaluation only.
        if number % 2 != self._warm:
            order = order[::-1]
        evaluations, untimed = self._size(latency_ns)
        return [PlannedVisit(rung, evaluations, untimed, number) for rung in order]

    def _size(self, latency_ns: float | None) -> tuple[int, int]:
        if not self.repeatable or latency_ns is None or latency_ns > self._slow_ns:
            return 1, 0
        latency_ns = max(latency_ns, 1.0)
        evaluations = min(VISIT_EVALUATIONS, math.ceil(VISIT_NS / latency_ns))
        if self.settings.runs:
            evaluations = min(evaluations, max(1, self.settings.runs // 3))
        return evaluations, min(MOST_UNTIMED, math.ceil(UNTIMED_NS / latency_ns))

    def _closing(self) -> list[PlannedVisit]:
        self._last_round = True
        _, untimed = self._size(self._typical())
        detail = [*self._details(), *self._samples()]
        # As many evaluations as the first rounds had, so that the two ends can be compared.
        evaluations = 3 if self.repeatable and not self._slow else 1
        last = PlannedVisit(self._timed[0], evaluations, untimed, self._round + 1)
        if self._slow and self._spent and not self.settings.runs:
            return detail  # the last visit only tells whether the machine drifted
        return [*detail, last]

    @property
    def _spent(self) -> bool:
        """Whether the budget is over, or would be before the half of another round was."""
        coming_ns = 0.0
        if self.repeatable and self._sampling:  # of the closing visits those that take longest
            coming_ns = max(self._most_sampled_ns, self._typical() or 0.0)
        if self.repeatable and not self.settings.runs:
            coming_ns += (self.spent_ns - self._spent_before_ns) / 2
        return self.spent_ns + coming_ns >= self.settings.budget_s * 1e9

    def _details(self) -> list[PlannedVisit]:
        """Return the visits of rungs for what costs time, which are made once."""
        rungs, self._detailed = self._detailed, []
        return [PlannedVisit(rung, 1, 0, self._round) for rung in rungs]

    def _samples(self) -> list[PlannedVisit]:
        """Return the visits in which samples are taken."""
        if self.repeatable:
            # While Python is sampled evaluations may be many times slower.
            sized = self._sampled(), 0, self._round, int(self._most_sampled_ns)
            return [PlannedVisit(rung, *sized) for rung in self._sampling]
        if self._sampled_ns >= self._most_sampled_ns:
            return []
        typical_ns = self._typical() or SAMPLED_APART_NS
        most = max(SAMPLED_APART, int(QUICK_SAMPLED_NS / typical_ns))
        if self._round == FIRST_SAMPLED and typical_ns * most < SAMPLED_APART_NS:
            most = FEW_SAMPLED
        times = min(self._sampled(), most, math.ceil(SAMPLED_APART_NS / typical_ns))
        return [PlannedVisit(rung, 1, 0, self._round) for rung in self._sampling] * times

    def _sampled(self) -> int:
        """Return in how many evaluations samples are taken: some hundred samples are enough."""
        latency_ns = self._typical()
        if not latency_ns:
            return 1
        most = self.settings.runs or MOST_SAMPLED
        return max(1, min(MOST_SAMPLED, most, int(self._most_sampled_ns / latency_ns)))

    @property
    def _most_sampled_ns(self) -> float:
        """For how long samples are taken."""
        # A plan of the bare rung alone has the rest of its budget for the rungs without latencies.
        share = SAMPLED_SHARE if len(self._timed) > 1 else 0.5
        return min(SAMPLED_NS, share * self.settings.budget_s * 1e9)

    def _enough(self) -> bool:
        if self._round < 0:
            return False
        if not self._timed or self._spent:
            return True
        fewest = min(len(self.latencies[rung]) for rung in self._timed)
        if self.settings.runs:
            return fewest >= self.settings.runs
        rounds = self._round + 1
        if rounds >= MOST_ROUNDS:
            return True
        if rounds < self._ask_at or self.lasted_s < self._spread_s:
            return False
        self._ask_at = math.ceil(rounds * 1.1)  # the intervals take as long as a visit, or longer
        return self._precise()

    def _precise(self) -> bool:
        """Return whether the model's latency is known well enough on every rung."""
        samples = [
            Series(
                np.array(self._began_ns[rung]),
                np.array(self._rounds[rung]),
                np.array(self.latencies[rung], dtype=np.float64),
            )
            for rung in self._timed
        ]
        level = slow_level(samples)
        within = max(self._half_width(each, level) for each in samples)
        self._level_dominates = level.half_width > within
        return math.hypot(within, level.half_width) <= self.settings.precision

    def _half_width(self, sample: Series, level: SlowLevel) -> float:
        """Return half of the 95 % interval of a rung's latency within the run, as a fraction."""
        # The minimum has no interval: how far the runs agree is judged by their trimmed mean.
        statistic = "trimmed" if self.settings.statistic == "min" else self.settings.statistic
        steady = (sample.values / level.drift(sample.began_ns))[:, None]
        half = half_width(steady, statistic, rounds=sample.rounds) / trimmed_mean(steady)
        return float(half[0])
