"""Makes the sources by name, and says why one cannot be read here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from xsp_levels.monitor import amd, host, nvidia, rapl

# Between samples of energy and power, and of the rest. Waking up costs the helper 0.2 ms of CPU
# time; NVML says itself when a value was updated.
FAST_NS, SLOW_NS = 50_000_000, 100_000_000


class Source(Protocol):
    """Something that can be read again and again.

    It has one of two methods, or both: `fast` reads energy and power, `slow` the rest.

    Attributes:
        notes: Sentences on what could not be read.
    """

    notes: list[str]


# For each source: what a person calls it, why it cannot be read (None: it can), how to make it.
SOURCES: dict[str, tuple[str, Callable[[], str | None], Callable[[int], Source]]] = {
    "nvidia": ("NVIDIA GPUs", nvidia.unavailable, lambda process: nvidia.Nvidia()),
    "amd": ("AMD GPUs", amd.unavailable, lambda process: amd.Amd()),
    "rapl": ("CPU energy", rapl.unavailable, lambda process: rapl.Rapl()),
    "host": ("host counters", host.unavailable, host.Host),
}


def with_energy(available: Sequence[str]) -> bool:
    """Tell whether there is a source of energy or of a device among the available ones."""
    return any(name != "host" for name in available)
