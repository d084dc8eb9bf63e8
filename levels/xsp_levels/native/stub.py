"""Installs callbacks in which no Python runs, from listings of machine code.

Some vendor libraries call back while they hold a lock of their own. A callback in
Python would wait for the interpreter's lock, while the thread that holds the
interpreter's lock waits for the library's lock: a deadlock (pytorch/pytorch#186295, with
CUPTI). So these callbacks are a few instructions that only write to memory. The
instructions are kept as listings with their bytes, so that no compiler is needed; x86-64 with
the System V calling convention is the only processor so far. A test assembles the
instructions of every listing, and compares the bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(
    r"^ *((?:[0-9a-f]{2} )*(?:<\w+>|[0-9a-f]{2})) {2,}(?:(\w+): )?(\S+(?: \S+)*)", re.ASCII
)
_LABEL = re.compile(r"^(\w+):$", re.ASCII)
_NEEDED = (
    "its callbacks are written in x86-64 machine code for Linux, and this is {system} on {machine}"
)

_kept: list[mmap.mmap] = []  # never freed: a library may call back at any later time


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a listing: a label, or an instruction, which may have a label too.

    Attributes:
        label: Name of the line, empty without a label.
        code: Bytes in hexadecimal, and `<name>` for 8 bytes that are filled in later.
        instruction: The same instruction for GNU's assembler, in Intel's syntax.
        callback: Whether the label is the name of a function.
    """

    label: str
    code: tuple[str, ...] = ()
    instruction: str = ""
    callback: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Assembled code.

    Attributes:
        code: The bytes.
        labels: Offset of each function in the bytes, by label.
    """

    code: bytes
    labels: Mapping[str, int]


def unsupported() -> str | None:
    """Return why the machine code cannot run here, None if it can run."""
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and machine == "x86_64" and ctypes.sizeof(ctypes.c_void_p) == 8:
        return None
    return _NEEDED.format(system=system, machine=machine)


def lines(text: str) -> Iterator[Line]:
    """Yield the lines of a listing.

    A line is the name of a function and a colon, or bytes, two spaces, and the instruction;
    text after two more spaces is a comment, and so is a line of any other form.

    >>> [line.instruction for line in lines("  48 b8 <state>  mov rax, state  where it is")]
    ['mov rax, state']
    """
    for line in text.splitlines():
        if label := _LABEL.match(line.strip()):
            yield Line(label[1], callback=True)
        elif match := _LINE.match(line):
            yield Line(match[2] or "", tuple(match[1].split()), match[3])


def read(text: str, **addresses: int) -> Listing:
    r"""Return the code of a listing (see `lines`).

    Args:
        text: The listing.
        addresses: Numbers that take the place of `<name>` among the bytes, as 8 bytes.

    >>> read("go:\n  48 b8 <state>  mov rax, state\n  c3  ret", state=1).code.hex()
    '48b80100000000000000c3'
    """
    code, labels = bytearray(), {}
    for line in lines(text):
        if line.callback:
            labels[line.label] = len(code)
        for word in line.code:
            name = word.strip("<>")
            code += addresses[name].to_bytes(8, "little") if name != word else bytes.fromhex(word)
    return Listing(bytes(code), labels)


def install(listing: Listing) -> dict[str, int]:
    """Make code executable for as long as the process lives; return each label's address.

    Raises:
        OSError: The system does not let this process make memory executable.
    """
    length = -(-len(listing.code) // mmap.PAGESIZE) * mmap.PAGESIZE
    page = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.write(listing.code)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None, use_errno=True)
    readable_code = mmap.PROT_READ | mmap.PROT_EXEC
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(page)), readable_code):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _kept.append(page)
    return {name: start + offset for name, offset in listing.labels.items()}


def address_of(function: object) -> int:
    """Return the address of a foreign function of ctypes."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
