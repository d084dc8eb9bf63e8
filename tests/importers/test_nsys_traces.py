"""Real files of Nsight Systems, where they are: against plain SQL and an obvious reference."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from nsight import recordings

import xsp

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
NAMES = ("t4-cupy", "rtx3060-graph")


def path_of(name: str) -> Path:
    path = TRACES / "nsys" / f"{name}.sqlite"
    if not path.exists():
        pytest.skip(f"needs {path} of real traces (XSP_TRACES)")
    return path


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest) -> Path:
    return path_of(request.param)


def ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("name", ["KERNEL", "MEMCPY", "RUNTIME", "SYNCHRONIZATION"])
def test_numbers_and_sums_by_name_are_those_of_plain_sql(path: Path, name: str) -> None:
    kind = {"KERNEL": "kernel", "MEMCPY": "memcpy", "RUNTIME": "launch", "SYNCHRONIZATION": "sync"}
    column = {"KERNEL": "shortName", "RUNTIME": "nameId"}.get(name)
    label = f"(SELECT value FROM StringIds WHERE id = {column})" if column else "NULL"
    asked = ask(
        path,
        f"SELECT {label}, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_{name} GROUP BY 1",
    )
    found = xsp.read(path).spans.filter(pl.col("kind") == kind[name])
    of_graphs = pl.col("name").str.starts_with("CUDA graph ")  # they are in a table of their own
    found = found.filter(~of_graphs).with_columns(
        name=pl.col("name") if column else pl.lit(None, pl.String)
    )
    sums = found.group_by("name").agg(pl.len(), pl.col("latency_ns").sum().cast(pl.Int64))
    expected = {(_bare(each[0]) if each[0] else None, *each[1:]) for each in asked}
    assert set(sums.rows()) == expected


def test_every_kernel_lies_in_the_innermost_range_that_was_open_at_its_call(path: Path) -> None:
    calls = {
        number: (start, end, thread)
        for number, start, end, thread in ask(
            path,
            "SELECT correlationId, start, end, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        )
    }
    ranges = _ranges(path)
    spans = xsp.read(path).spans
    names = dict(spans.select("span_id", "name").iter_rows())
    root = names[spans["span_id"][0]]
    found = spans.filter((pl.col("kind") == "kernel") & ~pl.col("name").str.contains("CUDA graph"))
    assert found.height == ask(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")[0][0]
    for number, parent in found.select("correlation_id", "parent_id").iter_rows():
        start, end, thread = calls[number]
        around = [
            each for each in ranges if each[2] == thread and each[0] <= start and end <= each[1]
        ]
        innermost = min(around, key=lambda each: each[1] - each[0], default=(0, 0, 0, root))
        assert names[parent] == innermost[3]


def test_every_row_of_the_files_is_shown_or_counted(path: Path) -> None:
    (recording,) = recordings(path)
    said = " ".join(warning.message for warning in recording.warnings)
    shown = ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "GRAPH_TRACE")
    read = {f"CUPTI_ACTIVITY_KIND_{name}" for name in shown} | {"OSRT_API", "NVTX_EVENTS"}
    about = r"^(StringIds|ENUM_|META_DATA_|TARGET_INFO_|ANALYSIS_|PROCESSES|Thread|Process|DIAG)"
    tables = ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    rows = 0
    for (table,) in tables:
        (count,) = ask(path, f'SELECT count(*) FROM "{table}"')[0]
        if table in read:
            rows += count
        elif count and not pl.Series([table]).str.contains(about)[0]:
            assert f"of {table}" in said or table == "PROFILER_OVERHEAD"
    named = ask(path, "SELECT count(*) FROM sqlite_master WHERE name = 'NVTX_EVENTS'")[0][0]
    domains = (
        ask(path, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 75") if named else [(0,)]
    )
    assert recording.rows.height == rows - domains[0][0]


def _ranges(path: Path) -> list[tuple[int, int, int, str]]:
    """Return start, end, thread and name of each range; an outer range comes first."""
    if not ask(path, "SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'"):
        return []
    return ask(
        path,
        "SELECT start, end, globalTid, coalesce(text, (SELECT value FROM StringIds WHERE id = "
        "textId)) FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start, end DESC",
    )


def _bare(name: str) -> str:
    """Return the name of a call without its versions."""
    while (stem := name.rstrip("0123456789")) != name and stem.endswith("_v"):
        name = stem[:-2]
    return name
