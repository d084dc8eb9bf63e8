"""Finds the places of functions in the libraries that export them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from xsp_levels.native.mapping import Mapping, mappings


@dataclass(frozen=True, slots=True)
class Place:
    """An address in a mapped file.

    Attributes:
        address: Address in the memory of this process.
        path: The file.
        offset: Offset of the same byte in the file.
    """

    address: int
    path: str
    offset: int


def exported(path: str, names: Iterable[str]) -> dict[str, Place]:
    """Return the places of those functions that a loaded library itself exports, by name.

    Args:
        path: Path of the library; a library that is not loaded exports nothing.
        names: Names of the functions to look for.
    """
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return {}
    addresses = {name: found for name in names if (found := _address(library, name)) is not None}
    if not addresses:
        return {}
    own = [each for each in mappings() if each.path == path]
    # The lookup also finds functions of the libraries that this library depends on.
    places = {name: place_of(address, own) for name, address in addresses.items()}
    return {name: place for name, place in places.items() if place is not None}


def place_of(address: int, found: Iterable[Mapping]) -> Place | None:
    """Return the place in a file of an address, None if the address is in none of `found`."""
    for each in found:
        if each.start <= address < each.end:
            return Place(address, each.path, address - each.start + each.offset)
    return None


def mentions(path: str, name: str) -> bool:
    """Tell whether a library on disk has a dynamic symbol that ends in `name`, without loading.

    Linkers store a name that is the end of a longer name as that end, so ends are matched.
    """
    from elftools.common.exceptions import ELFError  # noqa: PLC0415  takes 40 ms
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    wanted = name.encode() + b"\0"
    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            for number in range(elf.num_sections()):
                # By type: a hash table, which comes first, takes a tenth of a second to parse.
                with suppress(ELFError):
                    section = elf.get_section(number, ("SHT_STRTAB",))
                    if section.name == ".dynstr":
                        return wanted in section.data()
    except (OSError, ELFError, ValueError):  # the file is damaged or missing
        pass
    return False


def _address(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None
