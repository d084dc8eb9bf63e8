"""The profile that ONNX Runtime writes in, rows of its runs, nodes and kernels out.

Every run of the session is an evaluation; nodes of the graph are operators, and those of a
sub-graph (`If`, `Loop`) lie in the node that runs it. Of a kernel the profile says which node
launched it, but not by which call. `xsp.onnxruntime_profile` reads the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from xsp.errors import TraceFormatError
from xsp.importers.onnxruntime.device import activities
from xsp.importers.onnxruntime.host import calls, session
from xsp.importers.reading import content
from xsp.importers.recording import Contents, Recording
from xsp.importers.source import Source
from xsp.level import Kind
from xsp.onnxruntime_profile import BOM, RUN, Event, Profile, nodes, read_profile, rows_of
from xsp.problem import Problem
from xsp.provider import concat_rows
from xsp.quantity import counted, duration, shorten

_HEAD = re.compile(rb'^\s*\[.*?"cat"\s*:\s*"(Session|Node)"', re.DOTALL)
_KNOWN = re.compile(
    rb'"name"\s*:\s*"(model_loading_\w+|session_initialization|model_run|[^"]*_kernel_time'
    rb'|\w+Executor::Execute)"'
)
_CATEGORIES = ("Session", "Node", "Api", "Kernel")
_MOST_NAMES = 8  # in a message
_NAME = 60  # characters of a name in a message


class OnnxRuntime:
    """Reads profiles of ONNX Runtime (`SessionOptions.enable_profiling`)."""

    name = "onnxruntime"
    tool = "ONNX Runtime's profiler"

    def recognises(self, source: Source) -> bool:
        """Tell by the categories and names of the first events."""
        head = source.head.removeprefix(BOM)
        return bool(_HEAD.match(head) and _KNOWN.search(head))

    def read(self, source: Source) -> Contents:
        """Return what one process did in all runs of its session.

        Raises:
            TraceFormatError: No event of the file can be read.
        """
        profile = read_profile(content(source)[0])
        events = profile.events
        if not events:
            raise TraceFormatError(f"{source.path} holds no events with times")
        runs = _one_by_one([event for event in events if event.name == RUN])
        within = [event for event in events if event.category == "Session"]
        if runs:
            within = [event for event in within if not _is_outside(event, runs)]
        rows = concat_rows([*session(within), nodes(events), calls(events), *activities(events)])
        problems = (*_damage(profile), *_left_out(events, runs))
        return (Recording("ONNX Runtime", rows, rows_of(Kind.PIPELINE, runs), problems=problems),)


def _one_by_one(runs: list[Event]) -> list[Event]:
    """Return runs in the order of time; none if several threads ran the session at once.

    Whose a node is cannot be told then, for nodes may run in threads of a pool.
    """
    runs = sorted(runs, key=lambda run: (run.start, run.end))
    at_once = any(after.start < before.end for before, after in pairwise(runs))
    return [] if at_once else runs


def _is_outside(event: Event, runs: Sequence[Event]) -> bool:
    early, late = event.end <= runs[0].start, event.start >= runs[-1].end
    return early or late or event.name == RUN


def _damage(profile: Profile) -> Iterator[Problem]:
    if not profile.whole:
        yield Problem("cut-short", "the file ends in the middle: what is whole of it is here")
    if profile.damaged:
        events = counted(profile.damaged, "event")
        yield Problem("damaged-times", f"left out: {events} without proper times")


def _left_out(events: Sequence[Event], runs: Sequence[Event]) -> Iterator[Problem]:
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
    outside = [event for event in others if runs and _is_outside(event, runs)]
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
