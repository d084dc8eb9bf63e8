"""Identity: the ids under which a trace is known to whoever receives it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.trace_context import parse

# Ids of one picture share their upper half; the lower one counts its spans.
_UPPER = 0xFFFF_FFFF_0000_0000


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """What the ids of a trace's spans are made of.

    Attributes:
        trace_id: 16 bytes; the caller's where the trace hangs under a span of theirs.
        parent_span_id: The caller's span, 0 where there is none.
        base: What the number of a span, from 1, is added to.
        known: The trace's own span ids, sorted.
        numbers: Number of each of them.
    """

    trace_id: bytes
    parent_span_id: int
    base: int
    known: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.uint64]

    def span_ids(self, ids: pl.Series) -> pl.Series:
        """Return what the trace's own span ids are outside of it; null for those it lacks.

        They grow in the order of the spans, so that a store that keeps microseconds
        and sorts by time, then id, gives siblings back in the order they ran.
        """
        if not self.known.size:
            return pl.Series([None] * ids.len(), dtype=pl.UInt64)
        wanted = ids.fill_null(0).to_numpy()
        place = np.minimum(np.searchsorted(self.known, wanted), self.known.size - 1)
        outside = pl.Series(self.numbers[place] + np.uint64(self.base))
        there = pl.Series(self.known[place] == wanted) & ids.is_not_null()
        return pl.select(pl.when(there).then(outside)).to_series()


def check_parent(traceparent: str | None) -> None:
    """Verify that spans can hang under a span that is named like this.

    Raises:
        ValueError: It is not W3C trace context.
    """
    if traceparent is not None and parse(traceparent) is None:
        raise ValueError(
            f"parent={traceparent!r} is no W3C traceparent; one looks like "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        )


def identity(
    spans: pl.DataFrame, metadata: Mapping[str, Any], traceparent: str | None = None
) -> Identity:
    """Return the identity that spans, times and metadata give; equal ones give the same.

    Args:
        spans: Frame with at least `span_id`, `start_ns` and `end_ns`.
        metadata: The trace's metadata.
        traceparent: W3C trace context of the span to hang the root under.
    """
    digest = hashlib.blake2b(digest_size=24)
    digest.update(json.dumps(metadata, default=dict, sort_keys=True).encode())
    for name in ("span_id", "start_ns", "end_ns"):
        digest.update(spans[name].to_numpy().tobytes())
    trace_id, seed = digest.digest()[:16], int.from_bytes(digest.digest()[16:], "big")
    parent = 0
    if found := parse(traceparent or ""):
        trace_id, parent = found[0].to_bytes(16, "big"), found[1]
    ids = spans["span_id"].to_numpy()
    order = np.argsort(ids)
    numbers = order.astype(np.uint64) + np.uint64(1)
    return Identity(trace_id, parent, seed & _UPPER, ids[order], numbers)
