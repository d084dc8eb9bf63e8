"""Finds exported functions: in the libraries of this process, and in files on disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (?!0 )\d+ +(/\S.*?)(?: \(deleted\))?$",
    re.MULTILINE,
)
_LIBRARY = re.compile(r"\.so(\.|$)")
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_STRINGS, _DYNAMIC_SYMBOLS = 3, 11  # SHT_STRTAB, SHT_DYNSYM


@dataclass(frozen=True, slots=True)
class Place:
    """An address in a mapped file.

    Attributes:
        address: In the memory of this process.
        path: The file.
        offset: Of the same byte in the file.
    """

    address: int
    path: str
    offset: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a file that is mapped into this process.

    Attributes:
        start: First address.
        end: First address after it.
        offset: Of the first byte in the file.
        path: The file.
        executable: Whether it holds code.
    """

    start: int
    end: int
    offset: int
    path: str
    executable: bool


def mappings() -> list[Mapping]:
    """Return the files mapped into this process, by address; none where there is no /proc."""
    try:
        content = Path("/proc/self/maps").read_bytes()
    except OSError:
        return []
    return read_mappings(os.fsdecode(content))


def read_mappings(text: str) -> list[Mapping]:
    """Return the files in the text of a `/proc/…/maps`. Pure."""
    return [
        Mapping(int(start, 16), int(end, 16), int(offset, 16), path, "x" in rights)
        for start, end, rights, offset, path in _MAPPING.findall(text)
    ]


def libraries(found: Iterable[Mapping]) -> list[str]:
    """Return the paths of the shared libraries among mappings, each once, in their order."""
    return list(
        dict.fromkeys(
            each.path
            for each in found
            if each.executable and _LIBRARY.search(os.path.basename(each.path))
        )
    )


def exported(path: str, names: Iterable[str]) -> dict[str, Place]:
    """Return where the functions that a loaded library itself exports are.

    Args:
        path: Of the library; one that is not loaded exports nothing.
        names: Functions that are asked for.
    """
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return {}
    addresses = {name: found for name in names if (found := _address(library, name)) is not None}
    if not addresses:
        return {}
    own = [each for each in mappings() if each.path == path]
    # A library also answers for those that it stands on.
    places = {name: place_of(address, own) for name, address in addresses.items()}
    return {name: place for name, place in places.items() if place is not None}


def place_of(address: int, found: Iterable[Mapping]) -> Place | None:
    """Return the byte of a file that lies at an address, None if none of these mappings has it."""
    for each in found:
        if each.start <= address < each.end:
            return Place(address, each.path, address - each.start + each.offset)
    return None


def mentions(path: str, name: str) -> bool:
    """Tell whether a library on disk has a dynamic symbol that ends in `name`, unloaded.

    Linkers store a name that ends another one only once, as that one's end.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            wanted = name.encode() + b"\0"
            return any(data.find(wanted, start, end) >= 0 for start, end in _names_in(data))
    except (OSError, ValueError, struct.error):
        return False


def _names_in(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where in a 64-bit little-endian ELF file the names of dynamic symbols lie."""
    header = _ELF_HEADER.unpack_from(data, 0)
    table, size, count = header[6], header[11], header[12]
    if header[0][:6] != b"\x7fELF\x02\x01" or size != _SECTION.size:
        return
    sections = [_SECTION.unpack_from(data, table + i * size) for i in range(count)]
    for section in sections:
        if section[1] == _DYNAMIC_SYMBOLS and section[6] < count:
            strings = sections[section[6]]
            if strings[1] == _STRINGS:
                yield strings[4], strings[4] + strings[5]


def _address(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None
