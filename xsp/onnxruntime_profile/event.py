"""An event of ONNX Runtime's profiler, with its times in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

NODE = "_kernel_time"  # ends names of events that are the time of a node
FENCES = ("_fence_before", "_fence_after")
RUN = "model_run"  # the event of a run of the session


class Event(NamedTuple):
    """An event; times in nanoseconds since profiling began."""

    name: str
    category: str
    thread: int
    start: int
    end: int
    args: Mapping[str, Any]

    @property
    def is_node(self) -> bool:
        """Whether this is the time that a node of the graph took."""
        return self.category == "Node" and not self.name.endswith(FENCES)

    @property
    def is_on_device(self) -> bool:
        """Whether this ran on a device."""
        return self.category == "Kernel"

    def text(self, name: str) -> str | None:
        """Return an argument; None where the event does not have it."""
        value = self.args.get(name)
        return value if isinstance(value, str) and value else None

    def number(self, name: str) -> int | None:
        """Return a number of the arguments, which are written as texts."""
        value = str(self.args.get(name))
        return int(value) if value.isdecimal() and len(value) <= 18 else None
