"""The table of GPUs and the attributes of the root tell the same of one recording."""

from __future__ import annotations

import polars as pl
import pytest
from device_samples import timeline

from xsp.analyses import utilization
from xsp.provider import READING_SCHEMA
from xsp.reading.monitor import Monitoring, attributes_of, with_attributes
from xsp.trace import Trace

S = 1_000_000_000


def test_the_first_second_of_nvmls_utilization_is_of_what_ran_before() -> None:
    rows = [
        (second * S // 2, None, 0, "gpu_busy_pct", 0.0 if second < 2 else 90.0)
        for second in range(9)
    ]
    readings = pl.DataFrame(rows, schema=READING_SCHEMA, orient="row")
    found, _ = attributes_of(Monitoring(readings, 4 * S, steps=1))
    made = timeline(4 * S)
    spans = with_attributes(made.spans, {0: found})
    table = utilization(Trace(spans, made.metadata, None, readings))
    assert found["gpu_busy_pct"] == pytest.approx(90)
    assert table["gpu_busy_pct"].to_list() == [pytest.approx(90)]
