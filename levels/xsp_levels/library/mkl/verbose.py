"""Switches on the verbose mode of a library that contains MKL, and collects the mode's lines.

MKL opens its output file anew for every line, to append; so the file can be one in memory, and
the lines never reach standard output. The user's settings of the mode are restored.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from xsp_levels.native.mapping import libraries, mappings
from xsp_levels.native.symbol import Place, exported

# MKL calls this function once per call, after taking the duration, to write the line.
PRINTER = "mkl_serv_print_verbose_info"

_SWITCH = "mkl_serv_verbose"  # (int mode) -> int
_MODE = "mkl_serv_verbose_mode"  # () -> int *
_TO_FILE = "mkl_serv_verbose_output_file"  # (const char *) -> 0 if it can be written
_FILE = "mkl_serv_verbose_output_file_mode"  # () -> char[4096], empty: standard output
_FUNCTIONS = (PRINTER, _SWITCH, _MODE, _TO_FILE, _FILE)
_PRODUCT = "sgemm_"  # BLAS, by Fortran's convention: all arguments are pointers
_STDOUT = 1
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class MklLibrary:
    """One MKL in this process.

    Attributes:
        path: File that contains the MKL: MKL's own library, or one that MKL is linked into.
        printer: Place of the function `PRINTER`.
        complete: Whether this MKL can write its lines to a file, as MKL can since 2023.1.
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
        # A single symbol is looked up in the hundreds of libraries that are no MKL.
        if PRINTER in exported(path, [PRINTER]):
            places = exported(path, _FUNCTIONS)
            found.append(MklLibrary(path, places[PRINTER], set(_FUNCTIONS) == set(places)))
    return tuple(found)


@cache
def set_up(library: MklLibrary) -> str:
    """Make the first call of one MKL in verbose mode, and return the lines that MKL writes then.

    In the first such call of a process MKL measures the frequency of the processor, which takes
    half a second, and writes its version. Where the user had switched the mode on, or the library
    does not export the call, nothing is done.
    """
    recorder = MklRecorder(library)
    product = recorder.function(_PRODUCT)
    if product is None or recorder.users_own:
        return ""
    recorder.start()
    one, number = ctypes.byref(ctypes.c_int64(1)), ctypes.byref(ctypes.c_float(1))
    letter, result = ctypes.byref(ctypes.c_char(b"N")), ctypes.byref(ctypes.c_float())
    product(letter, letter, one, one, one, number, number, one, number, one, number, result, one)
    return recorder.stop()


class MklRecorder:
    """Has one MKL write its lines to memory from `start` until `stop`.

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

    @property
    def users_own(self) -> bool:
        """Whether the user has switched the verbose mode on."""
        return self._mode() != 0

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return a function of the library; None if the library does not export the function."""
        found = getattr(self._library, name, None)
        if found is not None:
            found.restype = None
        return found

    def start(self) -> None:
        """Switch the verbose mode on, into memory.

        Raises:
            OSError: MKL cannot write to memory.
        """
        self._users_mode = self._mode()
        speak()
        self._users_file = ctypes.string_at(self._file(), _LONGEST).split(b"\0", 1)[0]
        self._sink = os.memfd_create("xsp-mkl")
        # If MKL could not open its file, it would print a message on standard output.
        path = f"/proc/self/fd/{self._sink}".encode()
        if getattr(self._library, _TO_FILE)(path) != 0:
            self.undo()
            raise OSError(f"MKL cannot write to {path.decode()}")
        self._switch(self._users_mode or 1)

    def stop(self) -> str:
        """Restore the user's settings, and return the lines.

        If the user had switched the mode on, the lines are now written to the user's file.
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
            with contextlib.suppress(OSError), _destination(self._users_file) as descriptor:
                rest = memoryview(lines)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        return lines.decode(errors="replace")

    def undo(self) -> None:
        """Restore the user's settings, unless they are restored already."""
        if self._sink is None:
            return
        self._switch(self._users_mode)
        if self._users_mode or self._users_file:
            self._name_file(self._users_file)
        else:
            # A call under way on another thread writes its line yet: not to standard output.
            self._name_file(_NOWHERE)
            _SILENT.append(self)
        os.close(self._sink)
        self._sink = None

    def _name_file(self, name: bytes) -> None:
        # MKL's own function prints a complaint about an empty name.
        ctypes.memmove(self._file(), name + b"\0", len(name) + 1)

    def speak(self) -> None:
        """Have MKL write to standard output again, unless it writes elsewhere by now."""
        if ctypes.string_at(self._file(), _LONGEST).split(b"\0", 1)[0] == _NOWHERE:
            self._name_file(b"")

    def _mode(self) -> int:
        return getattr(self._library, _MODE)().contents.value

    def _switch(self, mode: int) -> None:
        getattr(self._library, _SWITCH)(mode)

    def _file(self) -> int:
        return getattr(self._library, _FILE)()


_NOWHERE = b"/dev/null"
_SILENT: list[MklRecorder] = []


def speak() -> None:
    """Have every MKL write its lines where the user wants them, calls under way among them."""
    while _SILENT:
        _SILENT.pop().speak()


@contextlib.contextmanager
def _destination(path: bytes) -> Iterator[int]:
    """Yield a descriptor of the user's output file for MKL's lines."""
    if not path:
        ctypes.CDLL(None).fflush(None)  # earlier output of C code comes first
        yield _STDOUT
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
