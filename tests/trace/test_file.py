from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import samples
from hypothesis import given, settings

from xsp.errors import ExportError, TraceFormatError
from xsp.trace.document import Trace, load
from xsp.trace.file import pack_runs, read_file, unpack_runs, write_file


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


def test_a_new_file_has_the_mode_of_the_umask(resnet: Trace, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        path = resnet.save(tmp_path / "a.xsp")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_is_replaced_and_what_it_leads_to_left_alone(resnet: Trace, tmp_path: Path) -> None:
    precious = tmp_path / "authorized_keys"
    precious.write_text("mine")
    precious.chmod(0o600)
    link = tmp_path / "link.xsp"
    link.symlink_to(precious)
    resnet.save(link)
    assert not link.is_symlink()
    assert load(link).name == "ResNet"
    assert precious.read_text() == "mine"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["authorized_keys", "link.xsp"]


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
    assert json.loads(metadata)["format"] == 2


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
    with pytest.raises(TraceFormatError, match=r"ends too early\. Copy it again"):
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
    path = write_trace(tmp_path / "new.xsp", spans, '{"format": 3}')
    with pytest.raises(TraceFormatError, match=r"format 3, and this xsp reads up to 2\. Upgrade"):
        load(path)


@pytest.mark.parametrize("metadata", ["", "{", "[]", "{}", "3", '{"format": null}', "[" * 90_000])
def test_metadata_that_makes_no_sense_is_refused(
    resnet: Trace, tmp_path: Path, metadata: str
) -> None:
    with pytest.raises(TraceFormatError, match=r"a\.xsp"):
        load(write_trace(tmp_path / "a.xsp", resnet.spans, metadata))


def test_any_flipped_bit_is_told_or_does_no_harm(
    resnet: Trace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = resnet.save(tmp_path / "a.xsp")
    content = path.read_bytes()
    chance = random.Random(7)
    refused = 0
    for _ in range(200):
        place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        try:
            assert load(path).spans.equals(resnet.spans)
        except TraceFormatError:
            refused += 1
    assert refused > 190
    assert capfd.readouterr().err == ""  # polars tells of its panics there


def test_spans_that_are_each_others_parents_are_refused(resnet: Trace, tmp_path: Path) -> None:
    ids = resnet.spans["span_id"]
    parents = resnet.spans["parent_id"].to_list()
    parents[3], parents[4] = ids[4], ids[3]
    path = resnet.save(tmp_path / "a.xsp")
    spans = resnet.spans.with_columns(parent_id=pl.Series(parents, dtype=pl.UInt64))
    with pytest.raises(TraceFormatError, match=r"a\.xsp: span .* comes before its parent"):
        load(write_trace(path, spans, '{"format": 2}'))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('"warnings": [1]', "warnings"),
        ('"warnings": [{"code": "a"}]', "message"),
        ('"levels": [1]', "levels"),
        ('"passes": 3', "passes"),
        ('"passes": [{"pass": "synchronous", "latency_ns": "x"}]', "latency_ns"),
        ('"environment": [1]', "environment"),
        ('"environment": {"gpus": [1]}', "gpus"),
        ('"environment": {"versions": {"torch": 2}}', "versions"),
        (f'"environment": {{"pid": {10**30}}}', "pid"),
        (f'"began_unix_ns": {10**30}', "began_unix_ns"),
        ('"began_unix_ns": -1', "began_unix_ns"),
        ('"traceparent": 7', "traceparent"),
        ('"created": "yesterday"', "yesterday"),
        ('"name": ["a"]', "name"),
        ('"other": ' + "[" * 600 + "]" * 600, "nested more than 64 deep"),
    ],
)
def test_metadata_of_other_types_is_refused_by_name(
    resnet: Trace, tmp_path: Path, entry: str, says: str
) -> None:
    path = write_trace(tmp_path / "a.xsp", resnet.spans, f'{{"format": 2, {entry}}}')
    with pytest.raises(TraceFormatError, match=rf"a\.xsp: the metadata is .*{says}"):
        load(path)


@pytest.mark.timing
def test_twenty_thousand_spans_load_quickly(tmp_path: Path) -> None:
    path = samples.trace(samples.wide(19_999)).save(tmp_path / "a.xsp")
    assert load(path).spans.height > 19_999
    # Processor time of all threads: a busy neighbor must not fail the test.
    start = time.process_time()
    load(path)
    assert time.process_time() - start < 0.2


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


def test_a_trace_without_a_span_is_refused(resnet: Trace, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "none.xsp", resnet.spans.clear(), '{"format": 2}')
    with pytest.raises(TraceFormatError, match="has no spans"):
        load(path)


def test_what_may_be_a_recording_of_another_tool_is_told_what_reads_these(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text("{}")
    with pytest.raises(TraceFormatError, match=r"xsp\.read\('.*rank0\.json'\)"):
        load(path)


def test_files_of_format_1_are_read_in_todays_words(resnet: Trace, tmp_path: Path) -> None:
    passes = [{"pass": "region", "runs": 30}, {"pass": "layer", "runs": 29}]
    trace = Trace(resnet.spans, {**resnet.metadata, "passes": passes}, resnet.typical_runs)
    today = trace.save(tmp_path / "today.xsp")
    spans, text, runs, _ = read_file(today)
    attributes = pl.col("attributes").struct
    fields = [
        attributes.field(name).alias(
            {"synchronous_ns": "serialised_ns"}.get(name, name.replace("self_", "own_"))
        )
        for name in spans["attributes"].struct.fields
    ]
    inexact = attributes.field("inexact").list.eval(pl.element().replace("few_samples", "few"))
    old = spans.with_columns(
        pl.col("kind").replace("region", "pipeline"), pl.struct(fields).alias("attributes")
    ).with_columns(attributes.with_fields(inexact=inexact))
    metadata = json.loads(text) | {"format": 1}
    metadata["problems"] = metadata.pop("warnings", [])
    metadata["rungs"] = [
        {"rung": one["pass"].replace("region", "pipeline"), "runs": one["runs"]}
        for one in metadata.pop("passes")
    ]
    old_runs = unpack_runs(runs).rename({"pass": "rung"})
    old_runs = old_runs.with_columns(pl.col("kind", "rung").replace("region", "pipeline"))
    earlier = write_file(old, json.dumps(metadata), tmp_path / "a.xsp", runs=pack_runs(old_runs))
    read = load(earlier)
    assert read.spans.equals(load(today).spans)
    assert read.typical_runs.equals(load(today).typical_runs)
    assert read.warnings == resnet.warnings
    assert [dict(one) for one in read.metadata["passes"]] == passes
