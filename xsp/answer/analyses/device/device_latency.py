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
        work: What devices did within the latency: what runs on after the end of the trace's root
            is cut off there, for nothing of the latency is spent on that.
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
        moments = pl.col("start_ns", "end_ns").clip(begin, end)
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
