"""Makes the settings of a measurement from the arguments of the front door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, field, replace
from typing import Any

from xsp.level import Level, LevelSet, parse_levels, wants_operators
from xsp.matching import ranks_of

_UNASKED = (("monitor", None), ("energy", False))  # which a trace does not say


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a measurement.

    Attributes:
        levels: Levels asked for.
        runs: Steps on every pass; None: until the model's latency is precise enough.
        budget_s: Seconds after which the measurement ends, precise enough or not.
        precision: Half width of the 95 % interval of the model's latency, as a fraction of the
            latency, that is precise enough.
        warmup: Steps before the first whose latency counts; 0: the model is warm already.
        statistic: How runs are summarized: trimmed, median or mean.
        operators: Whether the framework level has operators, or layers alone.
        monitor: Whether energy and utilization are read; None: where there is a device or an
            energy counter.
        energy: Whether they are read for 30 s, after 2 s in which nothing runs.
    """

    levels: frozenset[Level] = field(default_factory=lambda: parse_levels(2))
    runs: int | None = None
    budget_s: float = 20.0
    precision: float = 0.01
    warmup: int = 3
    statistic: str = "trimmed"
    operators: bool = True
    monitor: bool | None = None
    energy: bool = False

    def __post_init__(self) -> None:
        """Refuse settings by which nothing can be measured.

        Raises:
            ValueError: A number is out of its range, or the statistic unknown.
        """
        if self.runs is not None and (not isinstance(self.runs, int) or self.runs < 1):
            raise ValueError(f"runs= must be a whole number of at least 1 (got {self.runs!r}).")
        if not self.budget_s > 0:
            raise ValueError(f"budget= must be seconds above 0 (got {self.budget_s}).")
        ranks_of(self.statistic)  # refuses an unknown statistic
        if not 0 < self.precision < 1:
            raise ValueError(f"precision= must lie between 0 and 1 (got {self.precision}).")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as what JSON can hold."""
        plain = asdict(self) | {"levels": sorted(level.label for level in self.levels)}
        return {name: value for name, value in plain.items() if (name, value) not in _UNASKED}

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
    monitor: bool | None = None,
    energy: bool = False,
) -> Settings:
    """Return the settings behind the arguments of the front door.

    Raises:
        ValueError: A level is unknown, or a number out of range.
        TypeError: `levels` is no level set.
    """
    settings = Settings(
        levels=parse_levels(levels),
        operators=wants_operators(levels),
        runs=runs,
        statistic=statistic,
        monitor=monitor,
        energy=energy,
    )
    return settings if budget is None else replace(settings, budget_s=float(budget))


@dataclass(frozen=True, slots=True)
class schedule:  # noqa: N801  # reads as torch.profiler's does
    """Choose the steps of a program whose layers, operators and kernels are recorded.

    The arguments are those of `torch.profiler.schedule`. A step is one outermost call of a model.

    Example:
        Record 200 steps of a training loop, from the 110th on::

            with xsp.profile(schedule=xsp.schedule(wait=100, warmup=10, active=200)):
                train()

    Args:
        wait: Number of steps that xsp only times; by default 0.
        warmup: Number of steps after those that xsp only times too; by default 0.
        active: Number of steps after those that xsp records; None (default): all that follow.
        repeat: How often wait, warmup and active take place; by default once, 0: until the end.
            After the last time the hooks are out, and the program runs unobserved.
        skip: Another name of `wait`.

    Raises:
        ValueError: A number is negative, or no step would be recorded.
    """

    wait: int = 0
    warmup: int = 0
    active: int | None = None
    repeat: int = 1
    skip: InitVar[int | None] = None

    def __post_init__(self, skip: int | None) -> None:
        """Refuse numbers that mean nothing."""
        if skip is not None:
            object.__setattr__(self, "wait", skip)
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(
                    f"{name}= must be a whole number of at least {least} (got {value!r})."
                )

    def _records(self, number: int) -> bool:
        """Tell whether the layers of a step, numbered from 0, are recorded."""
        if self.active is None:
            return number >= self.wait + self.warmup
        within = number % (self.wait + self.warmup + self.active)
        return within >= self.wait + self.warmup and not self._ended(number)

    def _ended(self, number: int) -> bool:
        """Tell whether all that was to be measured came before a step."""
        if self.active is None or self.repeat == 0:
            return False
        return number >= self.repeat * (self.wait + self.warmup + self.active)
