"""Selects the providers that work on this machine and serve the levels asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from xsp.errors import MeasurementError
from xsp.level import MEASURED, Kind, Level
from xsp.matching import Pass, ladder
from xsp.provider import Monitor, Provider, Sampler, Watcher
from xsp.record.session import registry


@dataclass(frozen=True, slots=True)
class Selection:
    """The providers and kinds of span of a measurement.

    Attributes:
        providers: Providers that take part.
        kinds: Kinds of span that the providers will record.
        levels: For every level asked for, `MEASURED` or why the level is left out.
    """

    providers: tuple[Provider, ...]
    kinds: frozenset[Kind]
    levels: dict[str, str]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The ladder, bare pass first, and the passes that give no latencies.

        These are one for what the operating system does for regions, layers and operators each;
        a pass for attributes that cost time, without library calls unless there are
        kernels below them, for such calls tell all they know on the timed passes; one for
        samples of what Python runs, without the kinds that Python cannot be the time between; and
        one for monitors.
        """
        kinds = self.kinds - {Kind.SYSCALL}
        passes = ladder(kinds)
        if any(isinstance(provider, Monitor) for provider in self.providers):
            passes += (Pass(frozenset(), monitored=True),)
        shallow = frozenset(kind for kind in kinds if kind.order <= Kind.OP.order)
        if Kind.SYSCALL in self.kinds:
            passes += tuple(Pass(step.kinds | {Kind.SYSCALL}) for step in ladder(shallow)[1:])
        if not kinds - {Kind.REGION}:
            return passes
        below_calls = any(kind.order > Kind.CALL.order for kind in kinds)
        costly = kinds if below_calls or shallow == {Kind.REGION} else shallow
        passes = (*passes, Pass(costly, detail=True))
        if not any(isinstance(provider, Sampler) for provider in self.providers):
            return passes
        return (*passes, Pass(shallow, sampled=True))


def select(
    levels: Iterable[Level],
    *,
    operators: bool = True,
    monitor: bool | None = False,
    energy: bool = False,
) -> Selection:
    """Select the providers that can work here and serve one of `levels`.

    Args:
        levels: Levels asked for.
        operators: Whether operators are recorded if the framework level is asked for.
        monitor: Whether monitors take part; None: those that can read more than the host.
        energy: Whether they must be able to.

    Raises:
        MeasurementError: Monitors were asked for, and none can work here.
    """
    levels = frozenset(levels)
    reasons = {
        provider.name: registry.unavailable(provider) for provider in registry.installed_providers()
    }
    usable = [p for p in registry.installed_providers() if reasons[p.name] is None]
    kinds = {kind for p in usable for kind in p.kinds if kind.level in levels} | {Kind.REGION}
    kinds -= set() if operators else {Kind.OP}
    return Selection(
        (
            *(p for p in usable if p.kinds & kinds or isinstance(p, Watcher)),
            *(_monitors(usable, asked=monitor, energy=energy)),
        ),
        frozenset(kinds),
        {level.label: _state(level, kinds, reasons) for level in sorted(levels)},
    )


def check_energy() -> None:
    """Ask monitors alone whether energy can be read, which takes no framework.

    Raises:
        MeasurementError: Nothing here tells energy.
    """
    monitors = (p for p in registry.installed_providers() if isinstance(p, Monitor))
    usable = [p for p in monitors if registry.unavailable(p) is None]
    list(_monitors(usable, asked=None, energy=True))


def _monitors(
    usable: Iterable[Provider], *, asked: bool | None, energy: bool
) -> Iterator[Any]:  # providers that are monitors
    if asked is False and not energy:
        return
    monitors = [p for p in usable if isinstance(p, Monitor)]
    found = [p for p in monitors if (asked and not energy) or p.has_energy()]
    if not found and (asked or energy):
        what = "energy" if energy else "utilization"
        raise MeasurementError(f"Nothing here tells {what}. `xsp doctor` says what is missing.")
    yield from found


def _state(level: Level, kinds: set[Kind], reasons: dict[str, str | None]) -> str:
    if any(kind.level is level for kind in kinds):
        return MEASURED
    said = [
        reason
        for provider in registry.installed_providers()
        if provider.level is level and provider.kinds and (reason := reasons[provider.name])
    ]
    said += [f"{entry.name}: {entry.reason}" for entry in registry.broken()]
    return "; ".join(said) or "no provider of this level is installed"
