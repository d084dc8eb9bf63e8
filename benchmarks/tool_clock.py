"""Times layers of the programs that `overhead_table.py` runs, by two reads of the clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

EVERY = 7  # calls of a layer, of which one is timed: no program has a multiple of it in a step


class LayerClock:
    """Times every seventh call of a kind of layer.

    Attributes:
        calls: Number of calls so far, by the kind's name.
        readings: Latencies of the timed calls in ns, by the kind's name.
    """

    def __init__(self) -> None:
        self.calls: dict[str, int] = defaultdict(int)
        self.readings: dict[str, list[int]] = defaultdict(list)

    def __call__(self, name: str, layer: Callable[[Any], Any], value: Any) -> Any:
        """Call the layer, and time it if its turn has come."""
        self.calls[name] += 1
        if self.calls[name] % EVERY:
            return layer(value)
        begin = perf_counter_ns()
        result = layer(value)
        self.readings[name].append(perf_counter_ns() - begin)
        return result


CLOCK = LayerClock()
