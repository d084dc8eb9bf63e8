"""How long alike parts of a program usually last: their times in, and what recording added, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import Rung, trimmed_mean

Floats = NDArray[np.float64]

FEWEST = 3  # evaluations recorded in one way, to say how much longer that made them
OUTLIER = 3.0  # times the median: slower evaluations are so for reasons of their own


@dataclass(frozen=True, slots=True)
class GroupLatency:
    """What merging found of a group.

    Attributes:
        latency_ns: Latency of an evaluation without overhead.
        rungs_ns: Latency of an evaluation on each rung, by the rung's name.
    """

    latency_ns: float
    rungs_ns: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Usual:
    """How long evaluations of a group last with nothing recorded.

    Attributes:
        typical_ns: As most of them last.
        mean_ns: On average, slow ones counted in: as many times as long as they are many
            together.
        most_ns: As long as the slowest ones last of which there are several; what is slower is
            likely to have happened once.
    """

    typical_ns: float
    mean_ns: float
    most_ns: float

    def share_of_own(self, lasts: Floats) -> float:
        """Return which part of the time of alike evaluations is their own, on average.

        Some of them are slower than most, and more of them where something is recorded: its
        buffers are allocated, its results handed over. What is far slower is so by itself.
        """
        average = np.minimum(lasts, self.most_ns).mean()
        return min(self.mean_ns / max(float(average), 1.0), 1.0)

    @classmethod
    def of(cls, measured: Floats, known: GroupLatency | None) -> Usual | None:
        """Return it by the evaluations that recorded nothing, or else by what merging found."""
        if len(measured) >= FEWEST:
            several = float(np.sort(measured)[-FEWEST])  # where threads wait for cores, many are
            most = max(OUTLIER * float(np.median(measured)), several)
            return cls(typical_of(measured), float(np.minimum(measured, most).mean()), most)
        if known is None:
            return None
        return cls(known.latency_ns, known.latency_ns, OUTLIER * known.latency_ns)


def recorded_typical(measured: Floats, rung: Rung, known: GroupLatency | None) -> float | None:
    """Return how long evaluations that were recorded in one way last; None if unknown."""
    if len(measured) >= FEWEST:
        return typical_of(measured)
    return None if known is None else known.rungs_ns.get(rung.name)


def without_added(measured: Floats, usual_ns: float, latency_ns: float) -> Floats:
    """Return times of alike parts that recording made longer without what it added.

    One that is slower than usual is so for reasons of its own; one far quicker has less to record.
    """
    added = max(usual_ns - latency_ns, 0.0)
    return np.maximum(measured - added, without_share(measured, usual_ns, latency_ns) / 2)


def without_share(measured: Floats, usual_ns: float, latency_ns: float) -> Floats:
    """Return times of unlike parts without what recording added: the more, the longer the part."""
    return measured * min(latency_ns / max(usual_ns, 1.0), 1.0)


def typical_of(lengths: Sequence[float] | Floats) -> float:
    """Return the trimmed mean of times of alike parts."""
    return float(trimmed_mean(np.asarray(lengths, dtype=np.float64)[:, None])[0])
