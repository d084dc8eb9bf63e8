from __future__ import annotations

import base64
import hashlib
import re
import sys
from pathlib import Path

import pytest
from samples import conv, hostile, layer, pipeline, resnet, trace, transformer
from test_page_packing import unpacked

import xsp
from xsp.show.cli import app as cli
from xsp.show.page.assembly import page_of
from xsp.show.page.spans import packed_attributes, packed_spans

Said = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return trace(resnet(), name="resnet").save(tmp_path / "resnet.xsp")


def test_the_command_writes_a_page_named_after_the_trace(
    file: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["report", str(file)]) == 0
    assert "the report is resnet.html" in capsys.readouterr().err
    assert (tmp_path / "resnet.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert cli.run(["report", str(file), str(file), "-o", "two.html"]) == 0
    assert (tmp_path / "two.html").is_file()


@pytest.mark.slow
def test_several_traces_are_called_by_their_files_wherever_they_are_told_apart(
    tmp_path: Path,
) -> None:
    files = [
        str(trace(resnet(), name="classify").save(tmp_path / f"{name}.xsp"))
        for name in ("net4", "slow")
    ]
    assert cli.run(["report", *files, "-o", str(tmp_path / "two.html")]) == 0
    page = (tmp_path / "two.html").read_text(encoding="utf-8")
    assert '<option value="1">slow</option>' in page
    assert re.search('data-open="0">net4<', page)
    assert "<title>net4, slow" in page
    for heading in ("net4", "slow", "latency, net4", "path, slow"):
        assert f">{heading}</button></th>" in page
    assert cli.run(["report", files[0], files[0], "-o", str(tmp_path / "same.html")]) == 0
    assert "net4.xsp (2)</option>" in (tmp_path / "same.html").read_text(encoding="utf-8")


def test_the_command_does_not_write_over_what_it_reads(file: Path, capsys: Said) -> None:
    before = file.read_bytes()
    assert cli.run(["report", str(file), "-o", str(file)]) == 2
    assert "would replace an input file" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_without_bokeh_it_says_what_to_install_and_leaves_nothing(
    file: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    assert cli.run(["report", str(file), "-o", str(tmp_path / "a.html")]) == 3
    assert "pip install 'xsp[report]'" in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def test_a_report_of_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is none"):
        xsp.report([], tmp_path / "a.html")


def test_the_policy_names_every_script_and_no_script_is_loaded() -> None:
    page = page_of([trace(hostile())])
    policy = re.search(r"script-src ([^;]*);", page)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    }
    assert hashes == set(policy[1].split())
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=[\"']?https?:", page)


def test_names_are_escaped_wherever_they_stand() -> None:
    page = page_of([trace(hostile())])
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "<b>bold</b>" not in body
    assert "&lt;b&gt;bold&lt;/b&gt;" in body
    assert "\x1b" not in page


def test_spans_and_attributes_are_those_of_the_trace() -> None:
    made = trace(pipeline("predict", layer("Net", "Net", conv("first", 50_000))))
    header, arrays = unpacked(packed_spans(made))
    spans = made.spans
    names = [header["names"][code] for code in arrays["name"]]
    assert names[:3] == ["predict", "Net", "first Conv2d"]
    assert arrays["latency_ns"].tolist() == spans["latency_ns"].to_list()
    assert arrays["end_ns"].tolist() == spans["end_ns"].to_list()
    assert arrays["parent"].tolist()[:3] == [-1, 0, 1]
    assert [header["kinds"][code] for code in arrays["kind"]] == spans["kind"].to_list()
    attributes, columns = unpacked(packed_attributes(made))
    assert columns["module_class.rows"].tolist() == [1, 2]
    codes = columns["module_class.codes"]
    assert [attributes["texts"]["module_class"][code] for code in codes] == ["Net", "Conv2d"]


@pytest.mark.slow
def test_a_page_of_a_hundred_thousand_spans_is_small(tmp_path: Path) -> None:
    made = trace(transformer(3_800))
    assert len(made) > 100_000
    assert xsp.report(made, tmp_path / "a.html").stat().st_size < 15e6
