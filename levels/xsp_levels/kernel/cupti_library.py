"""Finds cupti-python, CUPTI and the CUDA driver, and says what is wrong with them.

Nothing here initializes CUDA. No function of libcupti may be called where the driver
is missing: version 13.2 crashes there.

Has not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xsp_levels import stub

_NO_PYTHON = "cupti-python is not installed; `pip install xsp[cuda]` brings it{pin}"
_PIN = ", and `pip install 'cupti-python=={major}.*'` the one for the CUDA {major} that is loaded"
_NO_DRIVER = (
    "there is no NVIDIA driver (libcuda.so.1 cannot be loaded); install it, and in a container "
    "pass the GPU on (--gpus all)"
)
_NO_DEVICE = "the NVIDIA driver is here, but no GPU is; in a container pass one on (--gpus all)"
_OLD_DRIVER = (
    "the NVIDIA driver is for CUDA {driver} at most, and CUPTI is of CUDA {cupti}; update the "
    "driver, or install 'cupti-python=={major}.*'"
)
_MISMATCH = (
    "CUPTI is of CUDA {cupti}, and the CUDA that is loaded here of {cuda}; "
    "install 'cupti-python=={cuda}.*'"
)
_MAPPED = r"/(?:lib)?{name}\.so\.(\d+)"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is mapped into this process, as major versions; None: it is not.

    Attributes:
        cupti: Of libcupti.
        cudart: Of the CUDA runtime.
        path: The file that libcupti is.
    """

    cupti: int | None
    cudart: int | None
    path: str | None


def loaded(maps: str | None = None) -> Loaded:
    """Return which CUPTI and which CUDA runtime this process has mapped.

    Args:
        maps: Text of a `/proc/…/maps`; None: this process's.

    >>> loaded("7f00-7f01 r-xp 00000000 08:01 12 /x/lib/libcupti.so.13")
    Loaded(cupti=13, cudart=None, path='/x/lib/libcupti.so.13')
    """
    text = _own_maps() if maps is None else maps
    cupti = re.search(r"(/\S*" + _MAPPED.format(name="cupti")[1:] + r"\S*)", text)
    cudart = re.search(_MAPPED.format(name="cudart"), text)
    return Loaded(
        int(cupti[2]) if cupti else None, int(cudart[1]) if cudart else None, cupti and cupti[1]
    )


def unavailable() -> str | None:
    """Return why CUPTI cannot be used here and what would change that, None if it can."""
    try:
        return stub.unsupported() or _python_missing() or _driver_missing() or _mismatch()
    except (OSError, ValueError, AttributeError) as error:
        return f"CUPTI cannot be looked for: {error}"


def vendor() -> Any:
    """Return the module `cupti.cupti`.

    Raises:
        ImportError: cupti-python is missing or broken.
    """
    from cupti import cupti  # noqa: PLC0415

    return cupti


def library() -> ctypes.CDLL:
    """Return libcupti, which the vendor's module has loaded with its first call.

    Raises:
        OSError: It is not loaded.
    """
    path = loaded().path
    if path is None:
        raise OSError("libcupti is not loaded")
    found = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    found.cuptiActivityRegisterCallbacks.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    found.cuptiActivityGetNextRecord.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    )
    found.cuptiActivityGetNumDroppedRecords.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_void_p,
    )
    return found


def driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver serves; None where there is no driver.

    >>> version(13020)
    (13, 2)
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    return version(number.value) if driver.cuDriverGetVersion(ctypes.byref(number)) == 0 else None


def version(number: int) -> tuple[int, int]:
    """Return major and minor version of CUDA's way to write both as one number."""
    return number // 1000, number % 1000 // 10


def _python_missing() -> str | None:
    if "cupti" in sys.modules or importlib.util.find_spec("cupti") is not None:
        return None
    cudart = loaded().cudart
    return _NO_PYTHON.format(pin=_PIN.format(major=cudart) if cudart else "")


def _driver_missing() -> str | None:
    if driver_version() is None:
        return _NO_DRIVER
    if Path("/proc/driver/nvidia/version").exists() and not list(Path("/dev").glob("nvidia[0-9]*")):
        return _NO_DEVICE
    return None


def _mismatch() -> str | None:
    here, driver = loaded(), driver_version() or (0, 0)
    cupti = here.cupti or _installed_major()
    if cupti is None:
        return None
    if here.cudart is not None and here.cudart != cupti:
        return _MISMATCH.format(cupti=cupti, cuda=here.cudart)
    if driver[0] < cupti:
        said = f"{driver[0]}.{driver[1]}"
        return _OLD_DRIVER.format(driver=said, cupti=cupti, major=driver[0])
    return None


def _installed_major() -> int | None:
    try:
        return int(importlib.metadata.version("cupti-python").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_maps() -> str:
    try:
        return Path("/proc/self/maps").read_text()
    except OSError:
        return ""
