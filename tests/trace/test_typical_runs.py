from __future__ import annotations

import base64
import io
import re
import zlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from simulate import Machine, Noise, transformer
from toy import Toy, ToyModel

import xsp
from xsp.errors import TraceFormatError
from xsp.matching.run import Run
from xsp.reading.merge.assembly import Merged, merge
from xsp.testing import FakeClock, only_providers
from xsp.trace.document import Trace, load
from xsp.trace.file import pack_runs, unpack_runs
from xsp.trace.integrity import RUN_SCHEMA

BUSY = Noise(jitter=0.05, span_jitter=0.01)
PAGE = Path(__file__).parents[2] / "docs" / "trace.md"

STRINGS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pl.String: STRINGS,
    pl.Int64: st.integers(-(2**63), 2**63 - 1),
    pl.UInt64: st.integers(0, 2**64 - 1),
    pl.Int32: st.integers(-(2**31), 2**31 - 1),
}
ROWS = st.lists(
    st.fixed_dictionaries({n: st.none() | VALUES[t] for n, t in RUN_SCHEMA.items()}), max_size=30
)


def measured(noise: Noise = BUSY, rounds: int = 9, seed: int = 3) -> tuple[list[Run], Merged]:
    runs, _ = Machine(transformer(blocks=2), noise, seed).measure(rounds)
    return runs, merge(runs)


def parts(runs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(key[0]): frame for key, frame in runs.partition_by("pass", as_dict=True).items()}


@pytest.fixture
def trace() -> Trace:
    _, merged = measured()
    return Trace(merged.spans, {"name": "Net"}, merged.typical_runs)


# Which runs, and what of them


def test_every_pass_with_spans_has_one_run_outermost_first() -> None:
    runs, merged = measured()
    assert merged.typical_runs.schema == RUN_SCHEMA
    assert merged.typical_runs["pass"].unique(maintain_order=True).to_list() == [
        "region",
        "layer",
        "op",
    ]
    for pass_, rows in parts(merged.typical_runs).items():
        (latency,) = rows["run_latency_ns"].unique()
        assert latency in [run.latency_ns for run in runs if run.pass_.name == pass_]
        assert rows["parent_id"].null_count() == 1


@pytest.mark.parametrize("cost_ns", [0, 5_000])
def test_a_measured_model_keeps_its_runs(monkeypatch: pytest.MonkeyPatch, cost_ns: int) -> None:
    toy = Toy(FakeClock(), cost_ns=cost_ns)
    monkeypatch.setattr("xsp.record.session.recorder.SystemClock", lambda: toy.clock)
    with only_providers(toy), xsp.profile(levels=2, runs=3) as prof:
        model = ToyModel(toy)
        model()
    [trace] = prof.groups.values()
    spans = {pass_: rows.height for pass_, rows in parts(trace.typical_runs).items()}
    assert spans == {"region": 1, "layer": 1 + 10, "op": 1 + 10 + 6}
    latency = {
        pass_: rows["run_latency_ns"][0] for pass_, rows in parts(trace.typical_runs).items()
    }
    assert latency == {
        "region": model.latency_ns,
        "layer": model.latency_ns + 10 * cost_ns,
        "op": model.latency_ns + 16 * cost_ns,
    }
    assert trace.root.latency_ns == pytest.approx(model.latency_ns)


# As text


@given(ROWS)
@settings(deadline=None)
def test_whatever_the_rows_hold_comes_back_from_the_text(rows: list[dict[str, Any]]) -> None:
    frame = pl.DataFrame(rows, schema=RUN_SCHEMA)
    assert_frame_equal(unpack_runs(pack_runs(frame)), frame)


def text_of(content: bytes) -> str:
    return f"{zlib.crc32(content):08x} {base64.b64encode(content).decode()}"


def damaged(kind: str) -> str:
    text = pack_runs(measured()[1].typical_runs)
    half = len(text) // 8 * 4
    other = io.BytesIO()
    pl.DataFrame({"a": [1]}).write_parquet(other)
    return {
        "not base64": text[:half] + "?" + text[half:],
        "cut": text[:half],
        "no checksum": text[9:],
        "not Parquet": text_of(b"something else" * 9),
        "nothing": text_of(b""),
        "hole": text[:half] + "A" * 64 + text[half + 64 :],
        "other columns": text_of(other.getvalue()),
    }[kind]


DAMAGES = ["not base64", "cut", "no checksum", "not Parquet", "nothing", "hole", "other columns"]


# In a trace, and in its file


def test_runs_come_back_from_the_file(trace: Trace, tmp_path: Path) -> None:
    loaded = load(trace.save(tmp_path / "a.xsp"))
    assert_frame_equal(loaded.typical_runs, trace.typical_runs)
    assert loaded.typical_runs.height > 100
    again = load(loaded.as_measured().save(tmp_path / "b.xsp"))
    assert_frame_equal(again.typical_runs, trace.typical_runs)


def test_the_documented_way_to_read_them_needs_no_xsp(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "resnet50.xsp")
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[-1]
    names: dict[str, Any] = {}
    exec(code.replace('"resnet50.xsp"', repr(str(path))), names)
    assert_frame_equal(names["runs"], trace.typical_runs)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_runs_cost_the_runs_only(trace: Trace, tmp_path: Path, kind: str) -> None:
    texts = {"xsp": '{"format": 1, "name": "Net"}', "xsp.runs": damaged(kind)}
    trace.spans.write_parquet(tmp_path / "a.xsp", metadata=texts)
    loaded = load(tmp_path / "a.xsp")
    assert_frame_equal(loaded.spans, trace.spans)
    for _ in range(2):
        with pytest.raises(TraceFormatError, match="runs"):
            _ = loaded.typical_runs


def test_runs_of_other_columns_are_refused(trace: Trace) -> None:
    for wrong in (
        trace.typical_runs.drop("path"),
        trace.typical_runs.select(reversed(trace.typical_runs.columns)),
        trace.typical_runs.with_columns(pl.col("start_ns").cast(pl.Float64)),
        trace.spans,
    ):
        with pytest.raises(TraceFormatError, match="the columns of runs are pass String"):
            Trace(trace.spans, {}, wrong)


def test_documented_columns_are_those_of_the_runs() -> None:
    section = PAGE.read_text().split("\n## Runs\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    documented = [tuple(cell.strip() for cell in line) for line in lines]
    assert [row[:2] for row in documented] == [
        (f"`{name}`", f"`{dtype}`") for name, dtype in RUN_SCHEMA.items()
    ]
    for name, _, unit, meaning in documented:
        assert meaning.endswith(".")
        assert unit == ("ns" if name.endswith("_ns`") else "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (pl.lit("evil").alias("pass"), "unknown pass"),
        (pl.lit(None, pl.String).alias("pass"), "unknown pass"),
        (pl.lit("evil").alias("kind"), "unknown kind"),
        (pl.col("span_id").alias("parent_id"), "not the root"),
    ],
)
def test_runs_that_are_no_trees_of_known_words_are_refused(change: pl.Expr, said: str) -> None:
    merged = measured()[1]
    text = pack_runs(merged.typical_runs.with_columns(change))
    with pytest.raises(TraceFormatError, match=said):
        _ = Trace(merged.spans, {"name": "Net"}, text).typical_runs
