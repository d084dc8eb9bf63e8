"""Exported functions: names in, where the libraries of this process or files on disk have them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass

from xsp_levels.native.mapping import Mapping, mappings


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
    from elftools.common.exceptions import ELFError  # noqa: PLC0415  takes 40 ms
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    try:
        with open(path, "rb") as file:
            names = ELFFile(file).get_section_by_name(".dynstr")
            return names is not None and name.encode() + b"\0" in names.data()
    except (OSError, ELFError, ValueError):  # damaged, or no such file
        return False


def _address(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None
