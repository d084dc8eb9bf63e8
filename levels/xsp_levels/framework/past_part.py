"""Logs parts of a program that become known only after they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xsp.provider import END, KIND_BITS, PART, PAUSE

PastPart = tuple[str, int, int]  # name, begin and end in ns


def log_past(
    log: Any,
    part: PastPart,
    inside: Iterable[PastPart] = (),
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Log a part that has ended on this thread, and parts in it; without a name, a pause.

    Times in a log only grow: what lies before anything else that was logged meanwhile, as spans of
    the user's in a function that was traced, is left out.

    Args:
        log: The log of the program.
        part: The part.
        inside: Parts right in it, in the order of time.
        facts: What is known of the part beside its name.
    """
    mine = log.local.log or log.begin_thread()
    name, begin_ns, end_ns = part
    last = max(begin_ns, mine.events[-1]) if mine.events else begin_ns
    code = log.name(name, facts) << KIND_BITS | PART if name else PAUSE
    events = [code, last]
    for each, start, end in inside:
        if start >= last:
            last = min(end, end_ns)
            events += [log.name(each) << KIND_BITS | PART, start, END, last]
    mine.events.extend([*events, END, max(end_ns, last)])
