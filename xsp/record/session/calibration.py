"""Measures the cost of recording inside a provider's spans.

A provider reads the clock at either end of a span. What it does between the two readings makes the
recorded span longer, and no other pass shows that: the span is recorded on its own pass and on all
below. So empty spans are made, recorded and bare in turns, and compared:

    recorded   859 ns on average       bare   740 ns       recording costs 119 ns inside

`calibrate` makes the spans while the measurement warms up; `inside_cost` interprets their records
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from xsp.clock import Clock
from xsp.level import Kind
from xsp.matching import standard_error, trimmed_mean
from xsp.provider import Calibrating, EmptySpan, Provider, Records, Request

_BLOCKS = 10  # recorded and bare spans take turns, so that drift hits both alike
_SPANS = 20  # of a block; with PyTorch all blocks of a kind take 5 to 10 ms


@dataclass(frozen=True, slots=True)
class InsideCost:
    """Cost of recording a span between the span's own two ends.

    Attributes:
        provider: Name of the provider that records the span.
        kind: Kind of the span.
        cost_ns: By how much a recorded span is longer than the span is with nothing recorded;
            below 0 if it is shorter.
        error_ns: Standard error of `cost_ns`.
    """

    provider: str
    kind: Kind
    cost_ns: float
    error_ns: float


@dataclass(frozen=True, slots=True)
class Block:
    """Empty spans that were made one after the other.

    Attributes:
        records: What the provider recorded of `_SPANS` spans.
        bare_ns: How long as many bare ones took, by two readings of the clock each.
        apart_ns: How long as many calls took that last as long as what of a bare one lies
            outside of the span; none if nothing does.
    """

    records: Records
    bare_ns: tuple[int, ...]
    apart_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The empty spans of one kind that were made with a provider, not yet interpreted."""

    provider: Provider
    kind: Kind
    name: str
    blocks: tuple[Block, ...]


def calibrate(
    provider: Provider, kind: Kind, clock: Clock, measured: frozenset[Kind] = frozenset()
) -> Calibration | None:
    """Make empty spans of one kind; None if the provider has none.

    The provider is armed some times, for this kind alone, and is disarmed when the function
    returns or raises.

    Args:
        provider: The provider.
        kind: One of its kinds.
        clock: The measurement's clock.
        measured: The kinds that the measurement records.
    """
    empty = provider.empty_span(kind) if isinstance(provider, Calibrating) else None
    if empty is None:
        return None
    request = Request(frozenset({kind}), measured=measured)
    blocks = [_block(provider, request, empty, clock) for _ in range(_BLOCKS)]
    return Calibration(provider, kind, empty.name, tuple(blocks))


def inside_cost(made: Calibration) -> InsideCost | None:
    """Return the cost of recording inside spans of one kind; None if too few were recorded."""
    costs = [_cost(made, block) for block in made.blocks]
    known = np.array([cost for cost in costs if cost is not None])[:, None]
    if len(known) < _BLOCKS / 2:
        return None
    cost, error = float(trimmed_mean(known)[0]), float(standard_error(known)[0])
    return InsideCost(made.provider.name, made.kind, cost, error)


def _block(provider: Provider, request: Request, empty: EmptySpan, clock: Clock) -> Block:
    bare = _timed(empty.bare, clock.now)
    records = _recorded(provider, request, empty.make, clock)
    return Block(records, bare, _timed(empty.apart, clock.now) if empty.apart else ())


def _timed(call: Callable[[], object] | None, now: Callable[[], int]) -> tuple[int, ...]:
    """Return how long each of some calls took between two readings of the clock."""
    took = []
    for _ in range(_SPANS):
        if call is None:
            begin = now()
            end = now()
        else:
            begin = now()
            call()
            end = now()
        took.append(end - begin)
    return tuple(took)


def _recorded(
    provider: Provider, request: Request, make: Callable[[], object], clock: Clock
) -> Records:
    provider.start(clock, request)
    try:
        for _ in range(_SPANS):
            make()
    finally:
        records = provider.stop()
    return records


def _cost(made: Calibration, block: Block) -> float | None:
    """Return the cost that one block shows; None if some of its spans were not recorded."""
    rows = made.provider.spans(block.records)
    # Other threads of the program may have been recorded besides.
    ours = ((rows["kind"] == made.kind.value) & (rows["name"] == made.name)).to_numpy()
    if np.count_nonzero(ours) != _SPANS:
        return None
    recorded = (rows["end_ns"] - rows["start_ns"]).to_numpy()[ours].tolist()
    apart = _mean(block.apart_ns) if block.apart_ns else 0.0
    return _mean(recorded) - (_mean(block.bare_ns) - apart)


def _mean(took: Sequence[int]) -> float:
    return float(trimmed_mean(np.array(took, dtype=np.float64)[:, None])[0])
