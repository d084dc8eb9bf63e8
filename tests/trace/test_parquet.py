from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import samples
from hypothesis import given, settings

from xsp.errors import ExportError, TraceFormatError
from xsp.trace.document import Trace, load


@pytest.fixture
def resnet() -> Trace:
    return samples.trace(samples.resnet(), name="ResNet", plan={"rounds": 30})


def test_saved_trace_comes_back_equal(resnet: Trace, tmp_path: Path) -> None:
    path = resnet.save(tmp_path / "resnet.xsp")
    loaded = load(path)
    assert loaded.spans.equals(resnet.spans)
    assert loaded.metadata == resnet.metadata
    assert str(loaded) == str(resnet)


@given(samples.TREES)
@settings(max_examples=15, deadline=None)
def test_any_tree_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, tree: samples.Node
) -> None:
    trace = samples.trace(samples.pipeline("predict", tree))
    path = trace.save(tmp_path_factory.mktemp("any") / "a.xsp")
    assert load(path).spans.equals(trace.spans)


@pytest.mark.parametrize("name", ["a[1]*.xsp", "ä b.parquet", "-", "x" * 250])
def test_odd_file_names_are_taken_literally(resnet: Trace, tmp_path: Path, name: str) -> None:
    assert load(resnet.save(str(tmp_path / name))).name == "ResNet"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_saved_file_honours_the_umask_and_replaces_an_older_one(
    resnet: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "a.xsp"
    path.write_text("older")
    mask = os.umask(0o027)
    try:
        resnet.save(path)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640
    assert load(path).name == "ResNet"


def test_saving_through_a_link_replaces_what_it_points_to(resnet: Trace, tmp_path: Path) -> None:
    link = tmp_path / "link.xsp"
    link.symlink_to(tmp_path / "real.xsp")
    resnet.save(link)
    assert link.is_symlink()
    assert load(tmp_path / "real.xsp").name == "ResNet"


def test_polars_reads_the_file_without_xsp(resnet: Trace, tmp_path: Path) -> None:
    path = resnet.save(tmp_path / "a.xsp")
    code = (
        "import sys, polars as pl\n"
        f"spans = pl.read_parquet({str(path)!r})\n"
        f"metadata = pl.read_parquet_metadata({str(path)!r})['xsp']\n"
        "assert 'xsp' not in sys.modules\n"
        "layers = spans.filter(pl.col('kind') == 'layer')\n"
        "print(spans.height, layers['attributes'].struct.field('module_class')[0], metadata)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    height, module, metadata = done.stdout.split(maxsplit=2)
    assert (int(height), module) == (len(resnet), "ResNet")
    assert json.loads(metadata)["format"] == 1


def test_pandas_reads_the_file_without_xsp(resnet: Trace, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas and pyarrow")
    pytest.importorskip("pyarrow", reason="needs pandas and pyarrow")
    frame = pandas.read_parquet(resnet.save(tmp_path / "a.xsp"))
    assert list(frame.columns) == resnet.spans.columns
    assert frame["latency_ns"].sum() == pytest.approx(resnet.spans["latency_ns"].sum())
    assert frame["attributes"][1]["module_class"] == "ResNet"


def test_to_pandas_has_the_same_columns_and_values(resnet: Trace) -> None:
    pytest.importorskip("pandas", reason="needs pandas and pyarrow")
    frame = resnet.to_pandas()
    assert list(frame.columns) == resnet.spans.columns
    assert frame["path"].tolist() == resnet.spans["path"].to_list()


def test_to_pandas_without_pandas_says_what_to_install(
    resnet: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: pl.DataFrame) -> None:
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    monkeypatch.setattr(pl.DataFrame, "to_pandas", missing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'xsp\[pandas\]'"):
        resnet.to_pandas()


def test_missing_file_is_pythons_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.xsp")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"PAR", "is not a trace"),
        (b"PK\3\4" + b"\0" * 100, "is a recording: xsp.testing.replay"),
        (b"PAR1", "ends too early"),
        (b"PAR1PAR1", "ends too early"),
        (b"PAR1" + b"\0" * 60 + b"PAR1", "is damaged"),
        (b"PAR1" + b"\xff" * 60 + b"PAR1", "is damaged"),
        (b"name,latency\nconv1,3\n", "is not a trace"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "is not a trace"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.xsp"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match=rf"bad\.xsp {says}"):
        load(path)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.7, 0.99])
def test_truncated_file_is_refused_and_told_what_to_do(
    resnet: Trace, tmp_path: Path, part: float
) -> None:
    path = resnet.save(tmp_path / "a.xsp")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(TraceFormatError, match="a part of it is missing: copy it anew"):
        load(path)


def test_file_with_a_damaged_middle_never_escapes_as_another_error(
    resnet: Trace, tmp_path: Path
) -> None:
    path = resnet.save(tmp_path / "a.xsp")
    content = path.read_bytes()
    refused = 0
    for place in range(40, len(content) - 40, len(content) // 60):
        path.write_bytes(content[:place] + b"\xff" * 16 + content[place + 16 :])
        try:
            load(path)
        except TraceFormatError:
            refused += 1
    assert refused > 10


def test_parquet_of_someone_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(TraceFormatError, match="a Parquet file but not a trace"):
        load(path)


def write_trace(path: Path, spans: pl.DataFrame, metadata: str) -> Path:
    spans.write_parquet(path, metadata={"xsp": metadata})
    return path


def test_newer_format_is_refused_and_asks_for_an_upgrade(resnet: Trace, tmp_path: Path) -> None:
    spans = resnet.spans.with_columns(new=pl.lit(1))
    path = write_trace(tmp_path / "new.xsp", spans, '{"format": 2}')
    with pytest.raises(TraceFormatError, match="format 2, this xsp reads up to 1: upgrade xsp"):
        load(path)


@pytest.mark.parametrize("metadata", ["", "{", "[]", "{}", "3", '{"format": null}', "[" * 90_000])
def test_metadata_that_makes_no_sense_is_refused(
    resnet: Trace, tmp_path: Path, metadata: str
) -> None:
    with pytest.raises(TraceFormatError, match=r"a\.xsp"):
        load(write_trace(tmp_path / "a.xsp", resnet.spans, metadata))


def test_file_whose_columns_are_wrong_is_refused_by_name(resnet: Trace, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.xsp", resnet.spans.drop("path"), '{"format": 1}')
    with pytest.raises(TraceFormatError, match=r"a\.xsp: .*missing: \['path'\]"):
        load(path)


# Full disks


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_full_disk_leaves_nothing_behind_and_keeps_the_older_file(
    resnet: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.xsp"
    path.write_text("older")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(ExportError, match=r"no room for .*a\.xsp: No space left.*free some space"):
        resnet.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.xsp"]
    assert path.read_text() == "older"


def test_interrupted_save_leaves_nothing_behind(
    resnet: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resnet.save(tmp_path / "a.xsp")
    assert list(tmp_path.iterdir()) == []


def test_file_size_limit_leaves_nothing_behind(resnet: Trace, tmp_path: Path) -> None:
    source = resnet.save(tmp_path / "a.xsp")
    code = textwrap.dedent(f"""
        import resource
        from xsp.errors import ExportError
        from xsp.trace.document import load
        trace = load({str(source)!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            trace.save({str(tmp_path / "b.xsp")!r})
        except ExportError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "no room for" in done.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.xsp"]


def test_missing_folder_and_special_files_are_refused(resnet: Trace, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"there is no folder .*missing, make it first"):
        resnet.save(tmp_path / "missing" / "a.xsp")
    with pytest.raises(ExportError, match="not a file that can be replaced"):
        resnet.save("/dev/null")
    with pytest.raises(ExportError, match="not a file that can be replaced"):
        resnet.save(tmp_path)
