"""Reads the profile that ONNX Runtime writes, as rows of runs, nodes and kernels.

Every run of the session is a step; nodes of the graph are operators, and those of a
sub-graph (`If`, `Loop`) lie in the node that runs it. Of a kernel the profile says which node
launched it, but not by which call. `xsp.onnxruntime_profile` reads the file.
"""

from __future__ import annotations

import re
from itertools import pairwise

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.onnxruntime_profile import BOM, RUN, Event, nodes, read_profile, rows_of
from xsp.provider import concat_rows
from xsp.reading.importers.onnxruntime.device import activities
from xsp.reading.importers.onnxruntime.host import calls, session
from xsp.reading.importers.onnxruntime.left_out import damage, is_outside, left_out
from xsp.reading.importers.reading import content
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.source import Source

_HEAD = re.compile(rb'^\s*\[.*?"cat"\s*:\s*"(Session|Node)"', re.DOTALL)
_KNOWN = re.compile(
    rb'"name"\s*:\s*"(model_loading_\w+|session_initialization|model_run|[^"]*_kernel_time'
    rb'|\w+Executor::Execute)"'
)


class OnnxRuntime:
    """Reads profiles of ONNX Runtime (`SessionOptions.enable_profiling`)."""

    name = "onnxruntime"
    tool = "ONNX Runtime's profiler"

    def recognizes(self, source: Source) -> bool:
        """Tell by the categories and names of the first events."""
        head = source.head.removeprefix(BOM)
        return bool(_HEAD.match(head) and _KNOWN.search(head))

    def read(self, source: Source) -> Contents:
        """Read the recording of one process: all runs of its session.

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
            within = [event for event in within if not is_outside(event, runs)]
        rows = concat_rows([*session(within), nodes(events), calls(events), *activities(events)])
        warnings = (*damage(profile), *left_out(events, runs))
        return (Recording("ONNX Runtime", rows, rows_of(Kind.REGION, runs), warnings=warnings),)


def _one_by_one(runs: list[Event]) -> list[Event]:
    """Return runs in the order of time; none if several threads ran the session at once.

    Whose a node is cannot be told then, for nodes may run in threads of a pool.
    """
    runs = sorted(runs, key=lambda run: (run.start, run.end))
    at_once = any(after.start < before.end for before, after in pairwise(runs))
    return [] if at_once else runs
