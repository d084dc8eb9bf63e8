"""Settings: the arguments of the front door in, how and when is to be measured out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from xsp.evaluation import ranks_of
from xsp.level import Level, LevelSet, parse_levels


@dataclass(frozen=True, slots=True)
class Settings:
    """How a measurement is to be made.

    Attributes:
        levels: Levels asked for.
        runs: Evaluations on every rung; None: until the model's latency is precise enough.
        budget_s: Seconds after which the measurement ends, precise enough or not.
        precision: Half width of the 95 % interval of the model's latency, as a fraction of the
            latency, that is precise enough.
        warmup: Evaluations before the first whose latency counts; 0: the model is warm already.
        statistic: How runs are summarised: trimmed, median, mean or min.
    """

    levels: frozenset[Level] = field(default_factory=lambda: parse_levels(3))
    runs: int | None = None
    budget_s: float = 20.0
    precision: float = 0.01
    warmup: int = 3
    statistic: str = "trimmed"

    def __post_init__(self) -> None:
        """Refuse settings by which nothing can be measured.

        Raises:
            ValueError: A number is out of its range, or the statistic unknown.
        """
        if self.runs is not None and (not isinstance(self.runs, int) or self.runs < 1):
            raise ValueError(f"runs={self.runs!r}: a whole number of evaluations, at least 1")
        if not self.budget_s > 0:
            raise ValueError(f"budget={self.budget_s}: the time budget is in seconds, above 0")
        ranks_of(self.statistic)  # refuses an unknown statistic
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
class schedule:  # noqa: N801  # reads as torch.profiler's does
    """Leave some evaluations out, warm up, measure, and stop.

    Example:
        Measure 200 steps of a training loop, from the 110th on::

            with xsp.profile(schedule=xsp.schedule(skip=100, warmup=10, active=200)):
                train()

    Attributes:
        skip: Evaluations at first of which nothing is recorded.
        warmup: Evaluations after those that are recorded, and do not count.
        active: Evaluations after those that are measured; then the program runs unobserved, and
            nothing is repeated after the block. None: until the plan is complete.
    """

    skip: int = 0
    warmup: int = 0
    active: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            ValueError: A number is negative, or nothing would be measured.
        """
        for name, least in (("skip", 0), ("warmup", 0), ("active", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(
                    f"schedule({name}={value!r}): a whole number of evaluations, at least {least}"
                )

    def records(self, number: int) -> bool:
        """Return whether an evaluation, numbered from 0, is recorded."""
        return number >= self.skip and not self.ended(number)

    def counts(self, number: int) -> bool:
        """Return whether the latency of an evaluation counts."""
        return self.records(number) and number >= self.skip + self.warmup

    def turns(self, number: int) -> bool:
        """Return whether an evaluation does not count, or is the last one that does."""
        return not self.counts(number) or self.ended(number + 1)

    def ended(self, number: int) -> bool:
        """Return whether all that was to be measured came before an evaluation."""
        return self.active is not None and number >= self.skip + self.warmup + self.active
