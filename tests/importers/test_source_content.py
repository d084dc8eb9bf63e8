"""Sources: the content of a file, packed or not, and how much of it was read."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from xsp.errors import TraceFormatError
from xsp.importers import Source
from xsp.reading.importers import source as sources

CONTENT = os.urandom(3_000_000)


@pytest.fixture(params=["plain", "gzip", "two gzips", "gzip of gzip"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    packed = {
        "plain": CONTENT,
        "gzip": gzip.compress(CONTENT),
        "gzip of gzip": gzip.compress(gzip.compress(CONTENT)),
        "two gzips": gzip.compress(CONTENT[:1000]) + gzip.compress(CONTENT[1000:]),
    }
    (tmp_path / "file").write_bytes(packed[request.param])
    return tmp_path / "file"


def test_content_is_read_whole_in_pieces_and_by_lines(path: Path) -> None:
    source = Source(path)
    with source.open() as file:
        assert file.read() == CONTENT
    with source.open() as file:
        assert b"".join(iter(lambda: file.read(70_001), b"")) == CONTENT
    with source.open() as file:
        assert b"".join(file) == CONTENT
    assert source.head == CONTENT[:65_536]


def test_what_is_larger_than_the_memory_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_available_memory", lambda: 3 * len(CONTENT))
    with (
        pytest.raises(TraceFormatError, match=r"too large for this machine.*available now"),
        Source(path).open() as file,
    ):
        file.read()
    monkeypatch.setattr(sources, "_available_memory", lambda: 6 * len(CONTENT))
    with Source(path).open() as file:
        assert file.read() == CONTENT


def test_a_packed_file_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(200_000_000), compresslevel=1))
    monkeypatch.setattr(sources, "_available_memory", lambda: 20_000_000)
    with Source(path).open() as file:
        assert len(file.read(500_000)) == 500_000
        with pytest.raises(TraceFormatError, match="unpacked, it holds more"):
            file.read()


@pytest.mark.parametrize("left", [30, 20_000, 2_000_000])
def test_the_head_of_a_file_whose_end_is_missing_is_what_is_whole(
    tmp_path: Path, left: int
) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(CONTENT)[:left])
    head = Source(path).head
    assert CONTENT.startswith(head)
    assert len(head) >= min(left - 30, 65_536) - 64
