"""Two ranks of a real distributed run as one trace."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

import xsp
from xsp.importers import Source
from xsp.reading.importers.format import contents_of

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
RANKS = [TRACES / "kineto" / f"rank{number}.json.gz" for number in range(2)]

pytestmark = pytest.mark.skipif(not RANKS[0].exists(), reason="needs the real traces (XSP_TRACES)")


@pytest.fixture(scope="module")
def trace() -> xsp.Trace:
    return xsp.read(*reversed(RANKS))


def test_clocks_come_together_by_collectives(trace: xsp.Trace) -> None:
    first, second = trace.metadata["imported"]["recordings"]
    assert (first["clock"], second["clock"]) == ("first", "collectives")
    # Both ran on one host, whose time of day is right for both.
    days = [contents_of(Source(path))[0][0].unix_ns for path in RANKS]  # type: ignore[union-attr]
    assert abs(second["clock_add_ns"] - (days[1] - days[0])) < 100_000  # type: ignore[operator]
    assert second["clock_error_ns"] < 200_000


def test_kernels_lie_in_the_rank_that_launched_them(trace: xsp.Trace) -> None:
    spans = trace.spans
    for number, path in enumerate(RANKS):
        alone = xsp.read(path)
        own = alone.spans.filter(pl.col("kind") == "kernel")
        below = spans.filter(
            pl.col("path").str.contains(f"/rank {number}/", literal=True),
            pl.col("kind") == "kernel",
        )
        assert below.height
        if trace.root.attributes["step"] == alone.root.attributes["step"]:
            assert below["name"].sort().to_list() == own["name"].sort().to_list()
