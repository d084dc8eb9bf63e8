"""Settings: the arguments of the front door in, how a measurement is to be made out."""

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
