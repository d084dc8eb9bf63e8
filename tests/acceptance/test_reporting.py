"""Promises of docs/report.md: one page that needs no network, with every answer on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small import answer, measured, network
from torch import nn

import xsp

pytest.importorskip("bokeh", reason="needs Bokeh: pip install 'xsp[report]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    measured().save(folder / "net.xsp")
    measured(network(16, nn.GELU())).save(folder / "more.xsp")
    return folder


def test_a_page_is_written_beside_the_trace_and_needs_no_network(folder: Path) -> None:
    done = answer(folder, "report", "net.xsp")
    assert done.returncode == 0, done.stderr
    page = (folder / "net.html").read_text(encoding="utf-8")
    assert re.search("<h1>.*Sequential", page)
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=.https?:", page)


def test_python_writes_the_same_page(folder: Path, tmp_path: Path) -> None:
    xsp.report(xsp.load(folder / "net.xsp"), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") or page.startswith("<!doctype html>")
    assert "Sequential" in page


@pytest.mark.slow
def test_several_traces_are_one_page_with_their_differences(folder: Path) -> None:
    done = answer(folder, "report", "net.xsp", "more.xsp", "-o", "both.html")
    assert done.returncode == 0, done.stderr
    page = (folder / "both.html").read_text(encoding="utf-8")
    assert "net" in page
    assert "more" in page
    assert "GELU" in page
