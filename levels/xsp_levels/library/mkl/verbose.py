"""MKL's verbose mode: switched on and off; the library in, its lines out.

MKL opens its output file for every line anew, to append; so the lines never touch the
standard output. What the user had set is put back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from xsp_levels.native.mapping import libraries, mappings
from xsp_levels.native.symbol import Place, exported

# What MKL writes a line with: it is called once per call, right after its time is taken.
PRINTER = "mkl_serv_print_verbose_info"

_SWITCH = "mkl_serv_verbose"  # (int mode) -> int
_MODE = "mkl_serv_verbose_mode"  # () -> int *
_TO_FILE = "mkl_serv_verbose_output_file"  # (const char *) -> 0 if it can be written
_FILE = "mkl_serv_verbose_output_file_mode"  # () -> char[4096], empty: standard output
_FUNCTIONS = (PRINTER, _SWITCH, _MODE, _TO_FILE, _FILE)
_STDOUT = 1
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class MklLibrary:
    """One MKL in this process.

    Attributes:
        path: File that it is in: a library of its own, or one that it is linked into.
        printer: Its `PRINTER`.
        complete: Whether it can write to a file, as it can since 2023.1.
    """

    path: str
    printer: Place
    complete: bool


def loaded() -> tuple[MklLibrary, ...]:
    """Return every MKL in this process."""
    return _among(tuple(libraries(mappings())))


@lru_cache(maxsize=1)
def _among(paths: tuple[str, ...]) -> tuple[MklLibrary, ...]:
    found = []
    for path in paths:
        # One question for the hundreds of libraries that are no MKL.
        if PRINTER in exported(path, [PRINTER]):
            places = exported(path, _FUNCTIONS)
            found.append(MklLibrary(path, places[PRINTER], set(_FUNCTIONS) == set(places)))
    return tuple(found)


class MklRecorder:
    """Has one MKL write to memory from `start` until `stop`.

    Args:
        library: The MKL.
    """

    def __init__(self, library: MklLibrary) -> None:
        self._library = ctypes.CDLL(library.path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        getattr(self._library, _MODE).restype = ctypes.POINTER(ctypes.c_int)
        getattr(self._library, _FILE).restype = ctypes.c_void_p
        self._sink: int | None = None
        self._users_mode = 0
        self._users_file = b""

    def start(self) -> None:
        """Begin.

        Raises:
            OSError: MKL cannot write to memory.
        """
        self._users_mode = self._mode()
        self._users_file = ctypes.string_at(self._file(), _LONGEST).split(b"\0", 1)[0]
        self._sink = os.memfd_create("xsp-mkl")
        # Its own message about a file that it cannot open would go to standard output.
        path = f"/proc/self/fd/{self._sink}".encode()
        if getattr(self._library, _TO_FILE)(path) != 0:
            self.undo()
            raise OSError(f"MKL cannot write to {path.decode()}")
        self._switch(self._users_mode or 1)

    def stop(self) -> str:
        """End, put back what the user had set, and return the lines.

        Where the user had asked for MKL's lines, they are written there now.
        """
        if self._sink is None:
            return ""
        sink = os.dup(self._sink)
        self.undo()
        try:
            lines = os.pread(sink, os.fstat(sink).st_size, 0)
        finally:
            os.close(sink)
        if self._users_mode:
            self._hand_on(lines)
        return lines.decode(errors="replace")

    def undo(self) -> None:
        """Put back what the user had set; nothing if that is done."""
        if self._sink is None:
            return
        self._switch(self._users_mode)
        # To set an empty name by MKL's own function would print a complaint.
        ctypes.memmove(self._file(), self._users_file + b"\0", len(self._users_file) + 1)
        os.close(self._sink)
        self._sink = None

    def _hand_on(self, lines: bytes) -> None:
        with contextlib.suppress(OSError), _destination(self._users_file) as descriptor:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    def _mode(self) -> int:
        return getattr(self._library, _MODE)().contents.value

    def _switch(self, mode: int) -> None:
        getattr(self._library, _SWITCH)(mode)

    def _file(self) -> int:
        return getattr(self._library, _FILE)()


@contextlib.contextmanager
def _destination(path: bytes) -> Iterator[int]:
    """Yield the descriptor that the user's MKL lines belong to."""
    if not path:
        ctypes.CDLL(None).fflush(None)  # what C code printed before comes before
        yield _STDOUT
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
