"""Real launches and kernels, as other tools recorded them, through the kernel level's own code.

What was recorded becomes CUPTI's records (`activity`), of which `xsp_levels.kernel.cupti` makes
rows again. With the rows of other levels, correlation has to make the tree of them that it makes
of the importer's own rows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from activity import INVALID, KINDS, Played, of_cupti, others
from gpu import Gpu, Step, models, transformer
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp.correlation.parent import Trees, correlate
from xsp.importers.kineto import Kineto
from xsp.importers.nsys import NsightSystems
from xsp.importers.recording import Recording
from xsp.importers.source import Source
from xsp.level import Kind
from xsp.provider.contract import Records
from xsp.provider.packing import pack, unpack
from xsp.provider.row import SpanRows, concat_rows, span_rows
from xsp_levels.kernel.cupti.provider import Cupti
from xsp_levels.kernel.cupti.stray import empty_graph_launches, unfinished, untimed, without_strays

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[5] / "shared" / "traces"))
MISSING = pytest.param(
    None,
    marks=pytest.mark.skip(
        reason=f"needs other tools' traces in {TRACES}, or where XSP_TRACES says"
    ),
    id="none",
)
FILES = sorted([*TRACES.glob("kineto/*.json.gz"), *TRACES.glob("nsys/*.sqlite")])
SEED = 3
OWN = [kind.value for kind in KINDS]

Key = tuple[Any, ...]


def through_cupti(rows: SpanRows) -> tuple[SpanRows, Played]:
    """Return rows of which CUPTI's were made of CUPTI's records, written and read again."""
    played = Played(rows, SEED)
    kept = unpack(Cupti(), pack(Cupti(), Records(played.kept)))
    return concat_rows([others(rows), Cupti().spans(kept)]), played


def as_recorded(rows: SpanRows) -> SpanRows:
    """Return the rows that the provider can have: nodes of graphs, and calls with an id each.

    Of a driver call inside a runtime call CUPTI makes no record; graphs recorded as one, which the
    provider does not ask for, are no kernels.
    """
    launch = pl.col("kind") == "launch"
    own_id = pl.col("correlation_id").max().fill_null(0) + 1 + pl.int_range(pl.len())
    rows = rows.with_columns(
        pl.when(launch)
        .then(pl.col("correlation_id").fill_null(own_id))
        .otherwise(pl.col("correlation_id"))
    )
    in_runtime = pl.col("name").str.contains("^cuda")
    runtime = rows.filter(launch & in_runtime)["correlation_id"]
    inner = launch & ~in_runtime & pl.col("correlation_id").is_in(runtime.to_list())
    whole_graph = (pl.col("kind") == "kernel") & pl.col("name").str.starts_with("CUDA graph ")
    return rows.filter(~inner & ~whole_graph)


def placed(trees: Trees, played: Played | None) -> list[list[tuple[Key, Key]]]:
    """Return CUPTI's rows of each tree with their parents; with a number for each id of a call."""
    found = []
    for frame in trees.frames:
        spans = frame.rows(named=True)
        found.append(
            sorted(
                (_key(span, played), _key(spans[span["parent"]], played))
                for span in spans[1:]
                if span["kind"] in OWN
            )
        )
    return found


def _key(span: dict[str, Any], played: Played | None) -> Key:
    number = span["correlation_id"]
    if span["kind"] in OWN:
        number = played.number_of(number) if played is not None else number or 0
    stream = span["stream"] or 0  # CUPTI has no word for a stream that is not known
    if span["kind"] == "sync" and span["stream"] in (None, INVALID):
        stream = -1  # of the whole context; files may say so by CUPTI's own number
    values = (span[name] for name in ("kind", "name", "start_ns", "end_ns", "thread", "device"))
    return (*(-1 if value is None else value for value in values), stream, number or 0)


def assert_same_tree(roots: SpanRows, rows: SpanRows) -> int:
    """Compare the tree of rows with that of CUPTI's records of them; return how many there are."""
    rows = as_recorded(rows)
    again, played = through_cupti(rows)
    expected, got = correlate(roots, rows), correlate(roots, again)
    wanted = placed(expected, played)
    assert placed(got, None) == wanted
    assert (got.orphans, got.outside) == (expected.orphans, expected.outside)
    assert (got.unlaunched, got.ambiguous_parents) == (
        expected.unlaunched,
        expected.ambiguous_parents,
    )
    return sum(map(len, wanted))


def recordings(path: Path) -> list[Recording]:
    importer = NsightSystems() if path.suffix == ".sqlite" else Kineto()
    source = Source(path)
    if not importer.recognises(source):
        pytest.skip(f"{importer.tool} is not read yet")
    return [each for each in importer.read(source) if isinstance(each, Recording)]


@pytest.mark.parametrize("path", FILES or [MISSING], ids=lambda path: path.name.split(".")[0])
def test_a_real_trace_makes_the_same_tree_by_way_of_cuptis_records(path: Path) -> None:
    for recording in recordings(path):
        rows = recording.rows
        roots = recording.roots if recording.roots.height else whole(rows)
        made = assert_same_tree(roots, rows)
        assert made or not of_cupti(rows).height or recording.roots.height


def whole(rows: SpanRows) -> SpanRows:
    """Return one evaluation around everything, on the thread that launched most."""
    launches = rows.filter(pl.col("kind") == "launch")["thread"].drop_nulls()
    thread = launches.mode().sort()[0] if len(launches) else None
    times = {"start_ns": rows["start_ns"].min(), "end_ns": rows["end_ns"].max()}
    return span_rows(
        {"kind": ["pipeline"], "name": "all", "thread": pl.Series([thread], dtype=pl.Int64)}
        | {name: pl.Series([value], dtype=pl.Int64) for name, value in times.items()}
    )


@pytest.mark.parametrize("path", FILES or [MISSING], ids=lambda path: path.name.split(".")[0])
def test_nothing_real_is_taken_for_a_stray(path: Path) -> None:
    for recording in recordings(path):
        kept = Played(recording.rows, SEED).kept
        begin = recording.rows["start_ns"].min()
        end = recording.rows["end_ns"].max()
        _, strays = without_strays(kept.tables, kept.alignment, begin, end)  # type: ignore[arg-type]
        assert (strays, untimed(kept.tables), unfinished(kept.tables)) == (0, 0, 0)


@settings(max_examples=40, deadline=None)
@given(models(), st.integers(1, 3))
def test_whatever_is_played_makes_the_same_tree(model: tuple[Step, ...], evaluations: int) -> None:
    played = Gpu(model).play(evaluations)
    assert_same_tree(played.roots, named(played.rows))


def test_a_transformer_on_two_streams_makes_the_same_tree() -> None:
    played = Gpu(transformer(blocks=4)).play(2)
    assert (
        assert_same_tree(played.roots, named(played.rows))
        == played.rows.filter(pl.col("kind").is_in(OWN)).height
    )


def named(rows: SpanRows) -> SpanRows:
    """Return rows with CUPTI's names of copies, sets and waits, which are no nodes of graphs."""
    names = {"memcpy": "memcpy HtoD", "memset": "memset", "sync": "synchronize stream"}
    node = pl.when(pl.col("kind") != "sync").then(pl.col("attr.graph_node"))
    return rows.with_columns(
        node,
        pl.col("kind").cast(pl.String).replace_strict(names, default=pl.col("name")).alias("name"),
    )


def test_a_graph_that_ran_nothing_is_told_from_one_that_did() -> None:
    rows = span_rows(
        {
            "kind": ["launch", "launch", "kernel"],
            "name": ["cudaGraphLaunch", "cudaGraphLaunch", "gemm"],
            "start_ns": [0, 10, 12],
            "end_ns": [5, 15, 19],
            "thread": [1, 1, None],
            "device": [None, None, 0],
            "stream": [None, None, 7],
            "correlation_id": [1, 2, 2],
        }
    )
    kept = Played(rows).kept
    assert empty_graph_launches(kept.tables, kept.calls) == (1, 2)
    assert kept.kinds >= {Kind.LAUNCH, Kind.KERNEL}
