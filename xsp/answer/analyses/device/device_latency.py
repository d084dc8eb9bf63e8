"""Divides the latency of a trace into the devices' working time and their waits for the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from xsp.answer.analyses.device.activity import Work
from xsp.answer.analyses.device.device_idle import CAUSES, idle_times
from xsp.answer.analyses.device.device_time import times_of
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace


@dataclass(frozen=True, slots=True)
class DeviceLatency:
    """How the latency of a trace divides over its devices' time, of several devices the mean.

    Attributes:
        work: What devices did within the latency. Where a device still worked on an earlier step
            when the first work of this one was launched, its time is moved by that lag, as in each
            step of a loop whose host runs ahead. What then runs on after the end of the trace's
            root is cut off there, for nothing of the latency is spent on that.
        whole_ns: The latency, which is that of the root.
        times: Time of each part of `device-time`, in ns.
        idle: Idle time of each cause of `device-idle`, in ns.
    """

    work: Work
    whole_ns: float
    times: Mapping[str, float]
    idle: Mapping[str, float]

    @classmethod
    def of(cls, trace: Trace) -> DeviceLatency:
        """Return the division of the latency of a trace in which devices worked."""
        tree = Tree.of(trace)
        begin, end = (int(tree.spans[name][0]) for name in ("start_ns", "end_ns"))
        work = Work.of(tree)
        moments = (pl.col("start_ns", "end_ns") - _lag_ns(end)).clip(begin, end)
        work = replace(work, table=work.table.with_columns(moments))
        idle = idle_times(work, "place").select(CAUSES).sum().row(0, named=True)
        return cls(
            work,
            float(end - begin),
            {part: float(each.mean()) for part, each in times_of(work, trace).items()},
            {cause: float(ns or 0) / work.places.height for cause, ns in idle.items()},
        )

    @property
    def before_ns(self) -> float:
        """Time before the first work."""
        return self.times["idle before the first work"]

    @property
    def after_ns(self) -> float:
        """Time after the last work."""
        return self.times["idle after the last work"]

    @property
    def host_ns(self) -> float:
        """How long devices wait for work that is not launched yet: host-bound."""
        return self.idle["host"] + self.before_ns + self.after_ns

    @property
    def launch_ns(self) -> float:
        """How long devices wait while calls launch their next work: launch-bound."""
        return self.idle["launch"]


def _lag_ns(end_ns: int) -> pl.Expr:
    """Return how far each device is behind the host when its first work is launched.

    It is no more than what the device works on after the root has ended: a host that waits for the
    device at the end of a step does not run ahead.
    """
    first = pl.col("start_ns").arg_min()
    waited = pl.col("start_ns").get(first) - pl.col("call_end_ns").get(first)
    beyond = pl.col("end_ns").max() - end_ns
    # Of work whose call is not known, nothing says that the device was behind.
    lag = pl.when(waited.is_not_null()).then(pl.min_horizontal(waited, beyond))
    return lag.clip(0).fill_null(0).over("place")
