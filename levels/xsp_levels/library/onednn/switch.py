"""Finds the copies of oneDNN in this process, and functions that set their verbose mode.

oneDNN is mostly linked into a framework. If the framework exports oneDNN's C interface,
`dnnl_set_verbose` is called in the loaded library; PyTorch hides the interface and has a
function of its own. The copies of TensorFlow and JAX have no such function: they print if the
environment said so when the process began. oneDNN cannot be asked for its mode.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from xsp_levels.native import mapping

PYTORCH = "PyTorch"
OFF, PROFILE = 0, 2  # 2: creation and execution of primitives
TIMESTAMP = "ONEDNN_VERBOSE_TIMESTAMP"
_VARIABLES = ("ONEDNN_VERBOSE", "DNNL_VERBOSE", "MKLDNN_VERBOSE")
_EXECUTION = frozenset({"1", "2", "-1", "all", "profile", "profile_exec"})
_RESTORABLE = frozenset({"", "0", "none", "error"})
_SYMBOLS = ("dnnl_set_verbose", "mkldnn_set_verbose")
_BUILT_WITH = re.compile(r"MKL-DNN v(\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class OneDnnLibrary:
    """One copy of oneDNN.

    Attributes:
        owner: Name of the framework or file that contains the copy.
        set_verbose: Sets the verbose mode (0, 1, 2); returns whether that worked.
        try_out: Runs a tiny primitive; None if there is no easy way to run one.
        version: Such as `3.7.1`; None if only oneDNN's header tells.
    """

    owner: str
    set_verbose: Callable[[int], bool]
    try_out: Callable[[], object] | None = None
    version: str | None = None


def libraries() -> tuple[OneDnnLibrary, ...]:
    """Return every copy of oneDNN that is loaded and can be switched."""
    return (*_of_torch(), *_exported(tuple(mapping.libraries(mapping.mappings()))))


def user_setting(environment: Mapping[str, str] = os.environ) -> str:
    """Return the verbose mode that the user's environment sets, in small letters; or ''."""
    values = (environment.get(name) for name in _VARIABLES)
    return next((value.strip().lower() for value in values if value), "")


def prints_anyway(setting: str) -> bool:
    """Return whether the user's setting has oneDNN print executions anyway."""
    return not _EXECUTION.isdisjoint(setting.split(","))


def restorable(setting: str) -> bool:
    """Return whether switching the mode off restores the user's setting."""
    return _RESTORABLE.issuperset(setting.split(","))


@contextlib.contextmanager
def timestamps_asked_for() -> Iterator[None]:
    """Ask for timestamps in the environment, which oneDNN reads when it prints first."""
    before = os.environ.get(TIMESTAMP)
    os.environ[TIMESTAMP] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TIMESTAMP]
        else:
            os.environ[TIMESTAMP] = before


def _of_torch() -> Iterator[OneDnnLibrary]:
    torch = sys.modules.get("torch")
    switch = getattr(getattr(torch, "_C", None), "_verbose", None)
    if torch is None or switch is None or not torch.backends.mkldnn.is_available():
        return
    built = _BUILT_WITH.search(torch.__config__.show())
    yield OneDnnLibrary(
        PYTORCH,
        lambda level: bool(switch.mkldnn_set_verbose(level)),
        # Type and device are named, as the user may have set other defaults.
        lambda: torch.ones(1, dtype=torch.float32, device="cpu").to_mkldnn(),
        built[1] if built else None,
    )


@functools.lru_cache(maxsize=1)
def _exported(paths: tuple[str, ...]) -> tuple[OneDnnLibrary, ...]:
    """Return each copy once whose C interface is exported by one of these libraries."""
    known: dict[int | None, OneDnnLibrary] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            function = next((f for n in _SYMBOLS if (f := getattr(library, n, None))), None)
            address = ctypes.cast(function, ctypes.c_void_p).value if function else None
            if function is not None and address not in known:
                known[address] = OneDnnLibrary(os.path.basename(path), _switch(function))
    return tuple(known.values())


def _switch(function: Callable[[ctypes.c_int], int]) -> Callable[[int], bool]:
    return lambda level: function(ctypes.c_int(level)) == 0
