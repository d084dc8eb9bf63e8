"""The plan: which rungs are run, in what order, how often, and when it is enough."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from xsp.evaluation import Rung, bootstrap_interval, ranks_of, trimmed_mean
from xsp.level import Kind, Level, LevelSet, parse_levels

VISIT_NS = 5_000_000  # a visit lasts about this long, if the model is quicker
VISIT_EVALUATIONS = 20  # and holds no more evaluations than this
UNTIMED_NS = 3_000_000  # what the last visit left in the caches is gone after this long
SLOW_NS = 500_000_000  # a model slower than this does not notice what is in the caches
MOST_UNTIMED = 100
FEWEST_ROUNDS = 10
MOST_ROUNDS = 400  # beyond, interpreting them takes longer than measuring


@dataclass(frozen=True, slots=True)
class Settings:
    """How a measurement is to be made.

    Attributes:
        levels: Levels asked for.
        runs: Evaluations on every rung; None: until it is precise enough.
        budget_s: Seconds after which it ends even if it is not.
        precision: Half width of the model latency's 95 % interval, as a fraction,
            that is precise enough.
        warmup: Evaluations before the first that counts.
        statistic: How runs are summarised: trimmed, median, mean or min.
    """

    levels: frozenset[Level] = field(default_factory=lambda: parse_levels(3))
    runs: int | None = None
    budget_s: float = 20.0
    precision: float = 0.01
    warmup: int = 3
    statistic: str = "trimmed"

    def __post_init__(self) -> None:
        """Refuse what cannot be measured by.

        Raises:
            ValueError: A number is out of its range, or the statistic unknown.
        """
        if self.runs is not None and (not isinstance(self.runs, int) or self.runs < 1):
            raise ValueError(f"runs={self.runs!r}: a whole number of evaluations, at least 1")
        if not self.budget_s > 0:
            raise ValueError(f"budget={self.budget_s}: the time budget is in seconds, above 0")
        ranks_of(self.statistic)  # refuses an unknown one
        if not 0 < self.precision < 1:
            raise ValueError(f"precision={self.precision}: a fraction between 0 and 1, as 0.01")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as what JSON can hold."""
        return asdict(self) | {"levels": sorted(level.label for level in self.levels)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Return the settings that `to_json` wrote."""
        return cls(**{**data, "levels": parse_levels(tuple(data["levels"]))})


def settings_of(
    levels: LevelSet,
    *,
    runs: int | None = None,
    budget: float | None = None,
    statistic: str = "trimmed",
) -> Settings:
    """Return the settings behind the arguments of the front door.

    Raises:
        ValueError: A level is unknown, or a number out of range.
        TypeError: `levels` is no level set.
    """
    settings = Settings(levels=parse_levels(levels), runs=runs, statistic=statistic)
    return settings if budget is None else replace(settings, budget_s=float(budget))


@dataclass(frozen=True, slots=True)
class Step:
    """One visit of a rung.

    Attributes:
        rung: What is recorded.
        evaluations: How many evaluations are timed.
        untimed: How many come before them that are not timed, so that what the last visit
            left in the caches is gone.
        round: Which round it belongs to; -1 for warming up.
    """

    rung: Rung
    evaluations: int = 1
    untimed: int = 0
    round: int = -1

    @property
    def counts(self) -> bool:
        """Whether its latencies count."""
        return self.round >= 0


class Plan:
    """Deals out steps until every rung's model latency is known well enough.

    Rounds are interleaved: each visits every rung once, in an order of its own, so
    that drift, and what one rung leaves in the caches, hits all rungs alike. The bare rung comes
    first and last.

    Args:
        rungs: The ladder, bare rung first; rungs that give no latency may be among them.
        settings: When it is enough.
        repeatable: Whether the caller can evaluate several times in one step, and
            as often as it likes; else every step is one evaluation.
    """

    def __init__(self, rungs: Sequence[Rung], settings: Settings, *, repeatable: bool) -> None:
        self.settings = settings
        self.repeatable = repeatable
        self.latencies: dict[Rung, list[int]] = defaultdict(list)
        self._rounds: dict[Rung, list[int]] = defaultdict(list)
        self.spent_ns = 0
        self._timed = [rung for rung in rungs if rung.timed]
        self._untimed = [rung for rung in rungs if not rung.timed]
        self._round = -1
        self._quickest_ns: int | None = None  # of the evaluations that warm up
        self._ask_at = FEWEST_ROUNDS
        self._last_round = False
        self._slow = False
        self._queue = self._warming()

    @property
    def done(self) -> bool:
        """Whether nothing is left to be run."""
        return not self._queue

    @property
    def fraction(self) -> float:
        """Return how much of it is done, from 0 to 1, as far as one can tell."""
        if self.done:
            return 1.0
        by_time = self.spent_ns / 1e9 / self.settings.budget_s
        if self.settings.runs:
            fewest = min(len(self.latencies[rung]) for rung in self._timed)
            return min(0.99, max(by_time, fewest / self.settings.runs))
        return min(0.99, by_time)

    @property
    def fewest_evaluations(self) -> int:
        """How many evaluations it takes at least, where every step is one; time aside."""
        rounds = self.settings.runs or FEWEST_ROUNDS
        return 1 + rounds * len(self._timed) + len(self._untimed) + 1

    @property
    def fell_short(self) -> bool:
        """Whether time ran out before there were as many evaluations as asked for."""
        fewest = min((len(self.latencies[rung]) for rung in self._timed), default=0)
        return self.done and fewest < (self.settings.runs or 0)

    def next(self) -> Step | None:
        """Return the next step, or None when it is enough."""
        return self._queue[0] if self._queue else None

    def record(self, step: Step, latencies: Sequence[int], *, spent_ns: int) -> None:
        """Take note that a step was made.

        Args:
            step: The step, as `next` gave it.
            latencies: Model latencies of its timed evaluations, in ns.
            spent_ns: How long it took in all.
        """
        if self._queue and self._queue[0] == step:
            self._queue.pop(0)
        self.spent_ns += spent_ns
        self._note_slowness(latencies)
        if latencies and not step.counts:
            self._quickest_ns = min(self._quickest_ns or latencies[0], *latencies)
        if step.counts:
            self.latencies[step.rung].extend(latencies)
            self._rounds[step.rung].extend([step.round] * len(latencies))
        if not self._queue and not self._last_round:
            self._queue = self._closing() if self._enough() else self._next_round()

    def _note_slowness(self, latencies: Sequence[int]) -> None:
        if latencies and min(latencies) > SLOW_NS and not self._slow:
            self._slow = True  # such a model is warm after one call
            self._queue = [step for step in self._queue if step.counts or step.rung.kinds]

    def _warming(self) -> list[Step]:
        # A profiler's first use in a process can take seconds. What a program does by
        # itself is never thrown away, so its first evaluation shows all that can be
        # seen: should it remain the only one, it is the trace. On a device the first
        # ones capture graphs, and what those replay later is known from then alone.
        if not self.repeatable:
            return [Step(self._timed[-1])]
        deepest = max((*self._timed, *self._untimed), key=lambda rung: rung.order)
        often = deepest if Kind.KERNEL in deepest.kinds else self._timed[0]
        others = [rung for rung in self._timed if rung != often]
        return [Step(rung) for rung in (*[often] * self.settings.warmup, *others)]

    def _next_round(self) -> list[Step]:
        self._round += 1
        return self._visits(self._round, latency_ns=self._typical())

    def _typical(self) -> float | None:
        known = self.latencies[self._timed[0]]
        return float(np.median(known)) if known else self._quickest_ns

    def _visits(self, number: int, latency_ns: float | None) -> list[Step]:
        order = self._timed
        if number > 0:  # shuffled, so that no rung always follows the same other one
            order = random.Random(number).sample(self._timed, len(self._timed))
        evaluations, untimed = self._size(latency_ns)
        return [Step(rung, evaluations, untimed, number) for rung in order]

    def _size(self, latency_ns: float | None) -> tuple[int, int]:
        if not self.repeatable or latency_ns is None or latency_ns > SLOW_NS:
            return 1, 0
        latency_ns = max(latency_ns, 1.0)
        evaluations = min(VISIT_EVALUATIONS, math.ceil(VISIT_NS / latency_ns))
        if self.settings.runs:
            evaluations = min(evaluations, max(1, self.settings.runs // 3))
        return evaluations, min(MOST_UNTIMED, math.ceil(UNTIMED_NS / latency_ns))

    def _closing(self) -> list[Step]:
        self._last_round = True
        _, untimed = self._size(self._typical())
        detail = [Step(rung, 1, 0, self._round) for rung in self._untimed]
        # As many as the first rounds had, so that the two ends can be compared.
        evaluations = 3 if self.repeatable and not self._slow else 1
        last = Step(self._timed[0], evaluations, untimed, self._round + 1)
        return [*detail, last]

    def _enough(self) -> bool:
        if self._round < 0:
            return False
        if not self._timed or self.spent_ns >= self.settings.budget_s * 1e9:
            return True
        fewest = min(len(self.latencies[rung]) for rung in self._timed)
        if self.settings.runs:
            return fewest >= self.settings.runs
        rounds = self._round + 1
        if rounds >= MOST_ROUNDS:
            return True
        if rounds < self._ask_at:
            return False
        self._ask_at = math.ceil(rounds * 1.1)  # asking takes as long as a visit, or longer
        return all(self._precise(rung) for rung in self._timed)

    def _precise(self, rung: Rung) -> bool:
        values = np.asarray(self.latencies[rung], dtype=np.float64)[:, None]
        rounds = np.asarray(self._rounds[rung])
        low, high = bootstrap_interval(values, self.settings.statistic, rounds=rounds)
        half_width = float(high[0] - low[0]) / 2
        return half_width <= self.settings.precision * float(trimmed_mean(values)[0])
