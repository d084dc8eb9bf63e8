"""Events of a profile in; what is wrong with it, or not among the rows, by name, out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from xsp.onnxruntime_profile import RUN, Event, Profile
from xsp.problem import Problem
from xsp.text import counted, duration, shorten

_CATEGORIES = ("Session", "Node", "Api", "Kernel")
_MOST_NAMES = 8  # in a message
_NAME = 60  # characters of a name in a message


def is_outside(event: Event, runs: Sequence[Event]) -> bool:
    """Tell whether an event of the session lies before or after all runs, or is one."""
    early, late = event.end <= runs[0].start, event.start >= runs[-1].end
    return early or late or event.name == RUN


def damage(profile: Profile) -> Iterator[Problem]:
    """Yield what is wrong with the file."""
    if not profile.whole:
        yield Problem("cut-short", "the file ends in the middle: what is whole of it is here")
    if profile.damaged:
        events = counted(profile.damaged, "event")
        yield Problem("damaged-times", f"left out: {events} without proper times")


def left_out(events: Sequence[Event], runs: Sequence[Event]) -> Iterator[Problem]:
    """Yield what is not among the rows, by name."""
    fences = [event for event in events if event.category == "Node" and not event.is_node]
    if fences:
        took = duration(sum(event.end - event.start for event in fences))
        yield Problem(
            "fences", f"left out: {counted(len(fences), 'fence')} of nodes, {took} in all"
        )
    unknown = [event for event in events if event.category not in _CATEGORIES]
    if unknown:
        yield Problem("unknown-events", f"left out, for xsp does not know them: {_listed(unknown)}")
    if not runs and any(event.name == RUN for event in events):
        yield Problem(
            "runs-at-once",
            "several threads ran the session at once: the whole recording is one evaluation",
        )
    others = [event for event in events if event.category == "Session" and event.name != RUN]
    outside = [event for event in others if runs and is_outside(event, runs)]
    if outside:
        yield Problem("outside-of-runs", f"left out, for no run is around it: {_listed(outside)}")


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
