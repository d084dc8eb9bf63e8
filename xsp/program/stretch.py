"""Schedules: the number of an evaluation in, whether it is recorded and counts out."""

from __future__ import annotations

from dataclasses import dataclass


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
