"""Defines runs, each one step on one pass, and the ladder of passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from xsp.level import Kind


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the ladder: the kinds of span that its runs record.

    Attributes:
        kinds: Kinds of span recorded on this pass; empty for the bare pass.
        detail: Whether costly attributes are recorded; such runs give no latency.
        sampled: Whether it is sampled what Python runs; such runs give no latency either.
        foreign: Whether another tool recorded the runs, so that nothing is known of what
            recording cost, and nothing of it can be removed.
        monitored: Whether monitors alone are armed; such runs give no latency either.
    """

    kinds: frozenset[Kind]
    detail: bool = False
    sampled: bool = False
    foreign: bool = False
    monitored: bool = False

    @property
    def timed(self) -> bool:
        """Whether the runs of this pass give latencies."""
        return not (self.detail or self.sampled or self.system or self.monitored)

    @property
    def system(self) -> bool:
        """Whether it is recorded what the operating system does for the other kinds of span."""
        return Kind.SYSCALL in self.kinds and not self.foreign

    @property
    def order(self) -> int:
        """Position of the deepest kind from outside in; -1 for the bare pass."""
        return max((kind.order for kind in self.kinds), default=-1)

    @property
    def name(self) -> str:
        """Name in files and tables: the deepest kind; of kernels, copies and launches `kernel`."""
        if self.monitored:
            return "monitor"
        if self.detail:
            return "detail"
        if self.sampled:
            return "stack"
        if self.system:
            others = self.kinds - {Kind.SYSCALL}
            return f"system-{Pass(others).name}" if others else "system"
        if not self.kinds:
            return "bare"
        kinds = [kind for kind in Kind if kind in self.kinds and kind.order == self.order]
        return (Kind.KERNEL if Kind.KERNEL in kinds else kinds[0]).value


def ladder(kinds: Iterable[Kind]) -> tuple[Pass, ...]:
    """Return the passes from the bare one down to all of `kinds` but system calls, in order.

    >>> [pass_.name for pass_ in ladder({Kind.REGION, Kind.LAYER, Kind.OP})]
    ['bare', 'region', 'layer', 'op']
    >>> ladder({Kind.LAUNCH, Kind.KERNEL, Kind.MEMCPY})[-1].name
    'kernel'
    """
    kinds = frozenset(kinds) - {Kind.SYSCALL}
    orders = sorted({kind.order for kind in kinds})
    return (
        Pass(frozenset()),
        *(Pass(frozenset(k for k in kinds if k.order <= order)) for order in orders),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """One step on one pass.

    Attributes:
        pass_: The pass, which says what was recorded.
        latency_ns: Time between two readings of the clock around the step, devices
            synchronized.
        rows: Correlated rows, root first, with the column `parent` (index of the
            parent's row in this frame, -1 for the root); None on the bare pass.
        process: Number of the process that the step ran in, from 0.
        round: Number of the round of the plan, from 0; -1 for warming up.
        host_ns: The latency without the time at the end in which the host only waited for
            devices; None: the host did not wait. Recording costs the host time, which such a
            wait would hide.
        began_ns: When the step began, on the measurement's clock, which all processes of
            a measurement share.
        page_faults: How many minor page faults the process took during the step, on
            average over the steps of its visit; None if unknown.
        group: Number of the group of like steps that it is of; 0 where all are alike.
        model_calls: How often the model was called in it, where steps differ in that.
    """

    pass_: Pass
    latency_ns: int
    rows: pl.DataFrame | None = None
    process: int = 0
    round: int = 0
    host_ns: int | None = None
    began_ns: int = 0
    page_faults: float | None = None
    group: int = 0
    model_calls: int = 1
