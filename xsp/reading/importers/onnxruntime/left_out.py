"""Reports damage to a profile, and events that are not among the rows, as warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from xsp.onnxruntime_profile import RUN, Event, Profile
from xsp.text import counted, duration, shorten
from xsp.warning import TraceWarning

_CATEGORIES = ("Session", "Node", "Api", "Kernel")
_MOST_NAMES = 8  # in a message
_NAME = 60  # characters of a name in a message


def is_outside(event: Event, runs: Sequence[Event]) -> bool:
    """Tell whether an event of the session lies before or after all runs, or is one."""
    early, late = event.end <= runs[0].start, event.start >= runs[-1].end
    return early or late or event.name == RUN


def damage(profile: Profile) -> Iterator[TraceWarning]:
    """Yield a warning for each kind of damage to the file."""
    if not profile.whole:
        yield TraceWarning(
            "cut-short", "the file ends in the middle; later spans are missing. Record again."
        )
    if profile.damaged:
        events = counted(profile.damaged, "event")
        yield TraceWarning(
            "damaged-times", f"{events} with damaged times are left out; the others are right"
        )


def left_out(events: Sequence[Event], runs: Sequence[Event]) -> Iterator[TraceWarning]:
    """Yield warnings of events that are not among the rows, by name."""
    fences = [event for event in events if event.category == "Node" and not event.is_node]
    if fences:
        took = duration(sum(event.end - event.start for event in fences))
        yield TraceWarning(
            "fences", f"{counted(len(fences), 'fence')} of nodes are left out, {took} in all"
        )
    unknown = [event for event in events if event.category not in _CATEGORIES]
    if unknown:
        yield TraceWarning("unknown-events", f"xsp does not know and left out: {_listed(unknown)}")
    if not runs and any(event.name == RUN for event in events):
        yield TraceWarning(
            "runs-at-once",
            "several threads ran the session at once, so the whole recording is one step; times "
            "are right",
        )
    others = [event for event in events if event.category == "Session" and event.name != RUN]
    outside = [event for event in others if runs and is_outside(event, runs)]
    if outside:
        yield TraceWarning(
            "outside-of-runs", f"outside of all runs and left out: {_listed(outside)}"
        )


def _listed(events: Sequence[Event]) -> str:
    """Return names with counts and times, those that took longest first."""
    counts, times = Counter[str](), Counter[str]()
    for event in events:
        name = shorten(event.name, _NAME)
        counts[name] += 1
        times[name] += event.end - event.start
    told = [
        f"{counts[name]:,} \u00d7 {name} ({duration(took)})" for name, took in times.most_common()
    ]
    more = len(told) - _MOST_NAMES
    return ", ".join(told[:_MOST_NAMES]) + (
        f" and {counted(more, 'more name')}" if more > 0 else ""
    )
