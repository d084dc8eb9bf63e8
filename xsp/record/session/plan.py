"""Plans the next visit by the latencies of the steps so far.

A plan says which pass is visited next, for how many steps, and when the measurement is
enough. Three rounds of a ladder with the passes bare, layer and op:

    warming up   op, bare, bare, bare, layer      gives no latencies
    round 0      bare, layer, op
    round 1      op, layer, bare                  the other way round
    round 2      layer, bare, op                  shuffled
    round 3      op, bare, layer                  the other way round
    closing      detail, stack, bare, monitor     what costs time, samples; did the machine drift?
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xsp.level import Kind
from xsp.matching import (
    FEWEST_ROUNDS,
    Pass,
    Series,
    SlowLevel,
    half_width,
    slow_level,
    trimmed_mean,
)
from xsp.record.session.settings import Settings
from xsp.record.session.visit import PlannedVisit

VISIT_NS = 5_000_000  # timed steps of a visit together, if the model is quicker
VISIT_CALLS = 20  # most timed steps of a visit
UNTIMED_NS = 3_000_000  # steps for this long replace what the last visit left in the caches
SLOW_NS = 500_000_000  # a model slower than this does not notice what is in the caches
SLOW_PARTS = 20  # nor has a budget with room for fewer steps any to spare for warming up
MOST_UNTIMED = 100  # steps before the timed ones of a visit
SPREAD_S = 3.0  # the rounds take at least so long: within less, a machine shows one mood
ROUNDS = 30  # in that time at most; between rounds the bare model runs, unrecorded
LATER_ROUNDS = 100  # in the budget at most, where the machine's speed moves more than rounds do
MOST_ROUNDS = 400  # interpreting more rounds takes longer than measuring them
SAMPLED_NS = 500_000_000  # samples of what Python runs are taken for this long
SAMPLED_SHARE = 0.05  # of the budget, at most
MOST_SAMPLED = 2000  # steps in which samples are taken, at most
MONITORED_NS = 3_000_000_000  # energy counters move every 20 to 100 ms: ±3 % at either end
MONITORED_SHARE, MONITORED_MOST = 0.1, 0.3  # of the budget: as much at least, and at most
ENERGY_NS = 30_000_000_000  # where energy is asked for
IDLE_NS = 2_000_000_000  # before that, in which nothing runs
MOST_WATCHED = 100  # steps of a pass of the system level, which may record 1,000 events in each


class Plan:
    """Asks for visits until the model's latency on every pass is known well enough.

    Each round visits every pass once, in an order of its own, and every second round in the
    reverse order of the one before, so that drift of the machine, and what one pass leaves in the
    caches, hits all passes alike. The bare pass comes first (the deepest, if the model is warm) and
    last. Rounds are spread over seconds, for a fraction of one shows that moment alone.

    Args:
        passes: The ladder, bare pass first; passes that give no latency may be among them.
        settings: When the measurement is enough.
    """

    def __init__(self, passes: Sequence[Pass], settings: Settings) -> None:
        self.settings = settings
        self._warm = not settings.warmup  # so that the deepest pass comes first
        self.latencies: dict[Pass, list[int]] = defaultdict(list)
        self._rounds: dict[Pass, list[int]] = defaultdict(list)
        self._began_ns: dict[Pass, list[int]] = defaultdict(list)
        self.spent_ns = 0
        self._begun = -1  # the latest round of which a visit was made
        self._first_ns = 0  # when the first round began
        self._latest_ns = 0  # when the latest round began
        self._spent_before_ns = 0  # until the latest round began
        self._now_ns = 0  # when the last visit ended
        self._timed = [pass_ for pass_ in passes if pass_.timed]
        self._detailed = [pass_ for pass_ in passes if pass_.detail]
        self._sampling = [pass_ for pass_ in passes if pass_.sampled]
        self._watching = [pass_ for pass_ in passes if pass_.system]
        self._monitoring = [pass_ for pass_ in passes if pass_.monitored]
        self._round = -1
        self._quickest_ns: int | None = None  # latency of a warm-up step
        self._ask_at = FEWEST_ROUNDS
        self._last_round = False
        self._slow = False
        # A first step on a device may compile; that of a CPU tells of the others.
        self._unjudged = int(any(Kind.KERNEL in pass_.kinds for pass_ in passes))
        self._level_dominates = False  # whether the machine moves more than rounds differ
        # A profiler's first use in a process can take seconds. The first step is on the
        # deepest pass: the trace is made of it if the user ends the measurement then. On a device
        # the first steps capture CUDA graphs, and only their records tell what later
        # replays stand for.
        if self._warm:  # profilers are armed
            self._queue = [PlannedVisit(pass_, 0) for pass_ in self._timed]
        else:
            deepest = max(
                (*self._timed, *self._detailed, *self._sampling), key=lambda pass_: pass_.order
            )
            on_device = Kind.KERNEL in deepest.kinds
            first = deepest if on_device else self._timed[-1]
            often = deepest if on_device else self._timed[0]
            others = [pass_ for pass_ in self._timed if pass_ not in (first, often)]
            more = self.settings.warmup - (first == often)
            self._queue = [PlannedVisit(pass_) for pass_ in (first, *[often] * more, *others)]

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
            fewest = min(len(self.latencies[pass_]) for pass_ in self._timed)
            return min(0.99, max(by_time, fewest / self.settings.runs))
        return min(0.99, by_time)

    @property
    def lasted_s(self) -> float:
        """Seconds since the first round began."""
        return (self._now_ns - self._first_ns) / 1e9 if self._first_ns else 0.0

    @property
    def fell_short(self) -> bool:
        """Whether the budget ran out before there were as many steps as asked for."""
        fewest = min((len(self.latencies[pass_]) for pass_ in self._timed), default=0)
        return self.done and fewest < (self.settings.runs or 0)

    def next(self) -> PlannedVisit | None:
        """Return the next visit, or None when the measurement is enough."""
        return self._queue[0] if self._queue else None

    def record(
        self,
        planned: PlannedVisit,
        latencies: Sequence[int],
        *,
        began_ns: int,
        ended_ns: int,
    ) -> None:
        """Count a visit.

        Args:
            planned: The visit, as `next` gave it.
            latencies: Model latencies of the timed steps of the visit, in ns.
            began_ns: When the visit began, on the session's clock.
            ended_ns: When the visit ended.
        """
        if self._queue and self._queue[0] == planned:
            self._queue.pop(0)
        lasted_ns = ended_ns - began_ns
        self.spent_ns += 0 if planned.pass_.monitored else lasted_ns
        self._now_ns = ended_ns
        if planned.pass_.monitored:
            return
        if planned.counts and planned.round != self._begun:
            self._begun, self._latest_ns = planned.round, began_ns
            self._spent_before_ns = self.spent_ns - lasted_ns
            self._first_ns = self._first_ns or began_ns
        self._note_slowness(latencies)
        if latencies and not planned.counts:
            self._quickest_ns = min(self._quickest_ns or latencies[0], *latencies)
        if planned.counts:
            self.latencies[planned.pass_].extend(latencies)
            self._rounds[planned.pass_].extend([planned.round] * len(latencies))
            self._began_ns[planned.pass_].extend([began_ns] * len(latencies))
        if not self._queue and not self._last_round:
            self._queue += self._closing() if self._enough() else self._next_round()

    def _note_slowness(self, latencies: Sequence[int]) -> None:
        if self._unjudged:
            self._unjudged -= 1
            return
        if latencies and min(latencies) > self._slow_ns and not self._slow:
            self._slow = True  # such a model is warm after one call; a profiler is once armed
            self._queue = [
                each if each.counts else replace(each, calls=0)
                for each in self._queue
                if each.counts or each.pass_.kinds
            ]

    @property
    def _slow_ns(self) -> float:
        """Latency above which steps are dear, and none is made that does not count."""
        if self.settings.runs:
            return SLOW_NS
        return min(SLOW_NS, self.settings.budget_s * 1e9 / SLOW_PARTS)

    def _next_round(self) -> list[PlannedVisit]:
        self._round += 1
        latency_ns = self._typical()
        order = self._timed
        if self._round > 1:  # shuffled, so that no pass always follows the same pass
            order = random.Random(self._round // 2).sample(order, len(order))
        # The other way round, so that drift makes no pass slower; deepest first if nothing was
        # recorded before, for there may be one step only.
        if self._round % 2 != self._warm:
            order = order[::-1]
        calls, untimed = self._size(latency_ns)
        visits = [PlannedVisit(pass_, calls, untimed, self._round) for pass_ in order]
        due_ns = self._latest_ns + math.ceil(1e9 * self._round_s)
        if self._round == 0 or due_ns <= self._now_ns:
            return visits
        return [PlannedVisit(self._timed[0], 0, pause_until_ns=due_ns), *visits]

    @property
    def _round_s(self) -> float:
        """Seconds from the beginning of a round to that of the next, at least."""
        if self.settings.runs:
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

    def _size(self, latency_ns: float | None) -> tuple[int, int]:
        if latency_ns is None or latency_ns > self._slow_ns:
            return 1, 0
        latency_ns = max(latency_ns, 1.0)
        calls = min(VISIT_CALLS, math.ceil(VISIT_NS / latency_ns))
        if self.settings.runs:
            calls = min(calls, max(1, self.settings.runs // 3))
        return calls, min(MOST_UNTIMED, math.ceil(UNTIMED_NS / latency_ns))

    def _closing(self) -> list[PlannedVisit]:
        self._last_round = True
        _, untimed = self._size(self._typical())
        # The visits of passes for what costs time, which are made once.
        passes, self._detailed = self._detailed, []
        details = [PlannedVisit(pass_, 1, 0, self._round) for pass_ in passes]
        detail = [*details, *self._samples(untimed)]
        # As many steps as the first rounds had, so that the two ends can be compared.
        calls = 1 if self._slow else 3
        last = PlannedVisit(self._timed[0], calls, untimed, self._round + 1)
        if self._slow and self._spent and not self.settings.runs:
            return [*detail, *self._readings()]  # the last only tells whether the machine drifted
        return [*detail, last, *self._readings()]

    def _readings(self) -> list[PlannedVisit]:
        """Return the visits for energy and utilization, in which nothing else is recorded."""
        budget_ns = self.settings.budget_s * 1e9
        most_ns = min(MONITORED_NS, MONITORED_MOST * budget_ns)
        most_ns, idle_ns = int(max(most_ns, MONITORED_SHARE * budget_ns)), 0
        if self.settings.energy:
            most_ns, idle_ns = ENERGY_NS, IDLE_NS
        return [
            PlannedVisit(pass_, round=self._round + 2, most_ns=most_ns, idle_ns=idle_ns)
            for pass_ in self._monitoring
        ]

    @property
    def _spent(self) -> bool:
        """Whether the budget is over, or would be before the half of another round was."""
        coming_ns = 0.0
        if self._sampling or self._watching:  # of the closing visits those that take longest
            coming_ns = max(self._most_sampled_ns, self._typical() or 0.0)
        if not self.settings.runs:
            coming_ns += (self.spent_ns - self._spent_before_ns) / 2
        return self.spent_ns + coming_ns >= self.settings.budget_s * 1e9

    def _samples(self, untimed: int) -> list[PlannedVisit]:
        """Return the visits of passes that sample what Python runs, or watch the system.

        Args:
            untimed: Steps before those that are watched, for these replace what was cached.
        """
        # While Python is sampled steps may be many times slower.
        calls, most_ns = self._sampled(), int(self._most_sampled_ns)
        watched = min(calls, MOST_WATCHED)
        return [
            *(
                PlannedVisit(pass_, watched, untimed, self._round, most_ns)
                for pass_ in self._watching
            ),
            *(PlannedVisit(pass_, calls, 0, self._round, most_ns) for pass_ in self._sampling),
        ]

    def _sampled(self) -> int:
        """Return in how many steps samples are taken: some hundred samples are enough."""
        latency_ns = self._typical()
        if not latency_ns:
            return 1
        most = self.settings.runs or MOST_SAMPLED
        return max(1, min(MOST_SAMPLED, most, int(self._most_sampled_ns / latency_ns)))

    @property
    def _most_sampled_ns(self) -> float:
        """Longest time, in ns, for which samples are taken."""
        # A plan of the bare pass alone has the rest of its budget for the passes without latencies.
        share = SAMPLED_SHARE if len(self._timed) > 1 else 0.5
        return min(SAMPLED_NS, share * self.settings.budget_s * 1e9)

    def _enough(self) -> bool:
        if self._round < 0:
            return False
        if not self._timed or self._spent:
            return True
        fewest = min(len(self.latencies[pass_]) for pass_ in self._timed)
        if self.settings.runs:
            return fewest >= self.settings.runs
        rounds = self._round + 1
        if rounds >= MOST_ROUNDS:
            return True
        if rounds < self._ask_at or self.lasted_s < self._spread_s:
            return False
        self._ask_at = math.ceil(rounds * 1.1)  # the intervals take as long as a visit, or longer
        # Whether the model's latency is known well enough on every pass.
        samples = [
            Series(
                np.array(self._began_ns[pass_]),
                np.array(self._rounds[pass_]),
                np.array(self.latencies[pass_], dtype=np.float64),
            )
            for pass_ in self._timed
        ]
        level = slow_level(samples)
        within = max(self._half_width(each, level) for each in samples)
        self._level_dominates = level.half_width > within
        return math.hypot(within, level.half_width) <= self.settings.precision

    def _half_width(self, sample: Series, level: SlowLevel) -> float:
        """Return half of the 95 % interval of a pass's latency within the run, as a fraction."""
        steady = (sample.values / level.drift(sample.began_ns))[:, None]
        half = half_width(steady, self.settings.statistic, rounds=sample.rounds)
        return float(half[0] / trimmed_mean(steady)[0])
