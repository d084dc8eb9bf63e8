"""Makes one table of what monitors recorded beside a stretch of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from xsp.errors import guarded
from xsp.provider import READING_SCHEMA, Monitor, Provider, Readings, Records
from xsp.record.session import Monitored
from xsp.warning import TraceWarning

_FAILED = (
    "xsp could not read the records of {} in the monitor pass, so energy and utilization are "
    "missing. Please report: {}: {}"
)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The readings beside some steps, or beside a program.

    Attributes:
        readings: Columns of `READING_SCHEMA`; times from the first step's begin, or the program's.
        lasts_ns: Time from there to the end of the last step, or of the program.
        steps: How many steps there were, one right after the other; 0: any program.
        begins_ns: When each step began; none where there were very many.
        warnings: What a reader should know.
    """

    readings: Readings = field(compare=False)
    lasts_ns: int
    steps: int
    begins_ns: tuple[int, ...] = ()
    warnings: tuple[TraceWarning, ...] = ()


def monitoring_of(monitored: Sequence[Monitored]) -> Monitoring | None:
    """Return the readings of the last of some monitored stretches; None if there are none."""
    if not monitored:
        return None
    last, warnings = monitored[-1], list[TraceWarning]()
    frames = [pl.DataFrame(schema=READING_SCHEMA)]
    for provider, records in last.records:
        warnings += [TraceWarning("provider", sentence) for sentence in records.warnings]
        frames.append(_readings(provider, records, warnings))
    readings = pl.concat(frames).with_columns(pl.col("time_ns", "since_ns") - last.begin_ns)
    lasts_ns = last.end_ns - last.begin_ns
    begins_ns = tuple(each - last.begin_ns for each in last.begins_ns)
    return Monitoring(readings, lasts_ns, last.steps, begins_ns, tuple(warnings))


def _readings(provider: Provider, records: Records, warnings: list[TraceWarning]) -> Readings:
    none = pl.DataFrame(schema=READING_SCHEMA)
    if not isinstance(provider, Monitor):
        return none

    def failed(error: Exception) -> Readings:
        said = _FAILED.format(provider.name, type(error).__name__, error)
        warnings.append(TraceWarning("provider-failed", said))
        return none

    return guarded(lambda: provider.readings(records).select(*READING_SCHEMA), failed).filter(
        pl.col("value").is_finite()  # a driver may say NaN
    )
