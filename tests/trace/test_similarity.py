from __future__ import annotations

import polars as pl

from xsp.trace.similarity import field


def test_field_that_is_missing_or_of_another_type_is_null() -> None:
    spans = pl.DataFrame({"attributes": [{"phase": 3}, {"phase": 4}]})
    assert field(spans, "phase").null_count() == 2
    assert field(spans, "nothing").null_count() == 2
    assert field(spans, "phase", pl.Int64).to_list() == [3, 4]
