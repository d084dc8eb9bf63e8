"""Steps that a program marks by a bare `prof.step()` at the end of each iteration.

The call notes where the log of its thread stands. When the log is read, a step reaches from one of
these places to the next; the first begins with the block, or with the region around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xsp import tracer
from xsp.level import Kind
from xsp.provider import AT, KIND_BITS, LEAVE, REGION
from xsp.record.program import Log, ProgramRecord, RegionFacts


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a step.

    Attributes:
        name: Name of the step.
        log: Number of the log of its thread.
        at: Entries of that log so far.
        now_ns: The time.
        region: Number of the region around the step; 0: none.
    """

    name: str
    log: int
    at: int
    now_ns: int
    region: int


def mark(log: Log, name: str) -> Mark:
    """Note that a step ends now, on this thread."""
    own = log.local.log or log.begin_thread()
    around = tracer.REGION.get()
    while around is not None and (around.closed or around.block is not log.block):
        around = around.parent
    entries = len(own.events) + sum(map(len, own.packed))
    return Mark(
        name,
        next(number for number, each in enumerate(log.threads) if each is own),
        entries,
        log.now(),
        0 if around is None else around.number,
    )


def with_steps(record: ProgramRecord, marks: Sequence[Mark]) -> ProgramRecord:
    """Add the steps that end at some marks to a record, as regions that the user marked."""
    if not marks:
        return record
    threads, regions = list(record.log.threads), list(record.log.regions)
    for number in {each.log for each in marks}:
        ident, log = threads[number]
        places: list[int] = []
        codes: list[int] = []
        last: Mark | None = None
        for each in (each for each in marks if each.log == number):
            if last is not None and last.region == each.region:
                at, begin_ns = last.at, last.now_ns
            else:
                at, begin_ns = _begin(log, each.region, record.begin_ns)
            facts = RegionFacts(each.name, Kind.REGION, each.region, {}, False, True)
            regions.append(facts)
            step = len(regions) << KIND_BITS
            # The region of calls that follow is said anew: a step has its place by its times.
            begin: list[Any] = [step | REGION, begin_ns, each.region << KIND_BITS | AT, begin_ns]
            end = [step | LEAVE, each.now_ns]
            places += [at] * len(begin) + [each.at] * len(end)
            codes += begin + end
            last = each
        threads[number] = ident, np.insert(log, places, codes)
    return replace(record, log=replace(record.log, threads=tuple(threads), regions=tuple(regions)))


def _begin(log: Any, region: int, begin_ns: int) -> tuple[int, int]:
    """Return where and when the first step in a region begins: with the region, or the block."""
    if region:
        opened = np.flatnonzero(log[0::2] == (region << KIND_BITS | REGION))
        if len(opened):
            at = 2 * int(opened[0])
            return at + 2, int(log[at + 1])
    return 0, begin_ns
