"""Names of functions and variables in; their places in the libraries that hold these out."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from xsp_levels.native.mapping import Mapping, mappings

_LINK_MAP = 2  # what dlinfo is asked for; begins with the address at which a library was loaded
_SYMBOL = np.dtype(  # of a 64-bit file
    {
        "names": ["name", "value", "size"],
        "formats": ["<u4", "<u8", "<u8"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)


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


@dataclass(frozen=True, slots=True)
class Local:
    """A function or variable that a library does not export.

    Attributes:
        address: Address in the memory of this process; of a file that is not loaded, in the file's
            own count.
        size: How many bytes it has.
    """

    address: int
    size: int


def local(path: str, names: Iterable[str], *, loaded: bool = True) -> dict[str, Local]:
    """Return those of some functions and variables that a file's symbol table lists, by name.

    Args:
        path: Path of the library, which may have been stripped of that table.
        names: Names as the linker knows them.
        loaded: Whether addresses in this process are wanted; a library that is not loaded has
            none. Else any file will do.
    """
    from elftools.common.exceptions import ELFError  # noqa: PLC0415  takes 40 ms

    base = _base(path) if loaded else 0
    if base is None:
        return {}
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return {
                name: Local(base + address, size) for name, address, size in _listed(content, names)
            }
    except (OSError, ELFError, ValueError):  # the file is damaged or missing
        return {}


def _listed(content: mmap.mmap, names: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yield name, address and size of symbols that the table of a mapped file lists.

    A table has a million entries in hundreds of megabytes: only what is looked for is read.
    """
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    elf = ELFFile(content)  # type: ignore[arg-type]  # a mapped file reads and seeks as files do
    table = elf.get_section_by_name(".symtab")
    if table is None or table["sh_entsize"] != _SYMBOL.itemsize:
        return
    texts = elf.get_section(table["sh_link"])
    begin, end = texts["sh_offset"], texts["sh_offset"] + texts["sh_size"]
    count = table["sh_size"] // _SYMBOL.itemsize
    symbols = np.frombuffer(content, _SYMBOL, count, table["sh_offset"]).copy()
    for name in names:
        at = content.find(b"\0" + name.encode() + b"\0", begin, end) + 1 - begin
        for symbol in symbols[symbols["name"] == at] if at > 0 else ():
            yield name, int(symbol["value"]), int(symbol["size"])


def _base(path: str) -> int | None:
    """Return what is added to the addresses in a loaded library; None if it is not loaded."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        told = ctypes.c_void_p()
        ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _LINK_MAP, ctypes.byref(told))
    except (OSError, AttributeError):
        return None
    return ctypes.c_size_t.from_address(told.value).value if told.value else None


def _address(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None
