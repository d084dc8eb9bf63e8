from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.native.mapping import libraries, mappings, read_mappings
from xsp_levels.native.symbol import exported, mentions, place_of

MAPS = """\
7f00-8f00 r--p 00001000 fe:00 42                         /usr/lib/lib one.so.6
8f00-9f00 r-xp 00002000 fe:00 42                         /usr/lib/lib one.so.6 (deleted)
9f00-af00 rw-p 00000000 00:00 0
af00-bf00 r-xp 00000000 00:00 0                          [vdso]
bf00-cf00 r-xp 00000000 fe:00 43                         /usr/bin/python3
"""


def libc() -> str:
    return next(path for path in libraries(mappings()) if Path(path).name.startswith("libc."))


def test_files_are_read_and_the_rest_is_passed_over() -> None:
    found = read_mappings(MAPS)
    assert [(each.start, each.offset, each.path) for each in found] == [
        (0x7F00, 0x1000, "/usr/lib/lib one.so.6"),
        (0x8F00, 0x2000, "/usr/lib/lib one.so.6"),
        (0xBF00, 0, "/usr/bin/python3"),
    ]
    assert libraries(found) == ["/usr/lib/lib one.so.6"]


@given(text=st.text(max_size=100))
def test_no_text_breaks_it(text: str) -> None:
    read_mappings(text)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc: run this test on Linux")
def test_function_is_found_where_it_is() -> None:
    place = exported(libc(), ["getpid", "no_such_function"])["getpid"]
    assert place.address == ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    with open(place.path, "rb") as file:
        file.seek(place.offset)
        assert file.read(8) == ctypes.string_at(place.address, 8)


def test_library_that_is_not_loaded_exports_nothing() -> None:
    assert exported("/nowhere/libnothing.so", ["getpid"]) == {}


@pytest.mark.skipif(
    sys.platform != "linux", reason="needs a shared library in ELF: run this test on Linux"
)
def test_names_in_a_library_on_disk_are_found_unloaded(tmp_path: Path) -> None:
    assert mentions(libc(), "getpid")
    assert not mentions(libc(), "no_such_function")
    for content in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 300, b"text" * 100):
        (tmp_path / "odd.so").write_bytes(content)
        assert not mentions(str(tmp_path / "odd.so"), "getpid")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc: run this test on Linux")
def test_file_whose_name_is_no_text_stops_nothing(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/odd\xff.so"
    with open(path, "wb+") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
            listed = [os.fsencode(each.path) for each in mappings()]
    assert path in listed


def test_address_that_no_file_lies_at_has_no_place() -> None:
    found = read_mappings(MAPS)
    place = place_of(0x8F10, found)
    assert place is not None
    assert (place.path, place.offset) == ("/usr/lib/lib one.so.6", 0x2010)
    assert place_of(0x9F00, found) is None
