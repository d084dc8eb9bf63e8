"""Finds libcupti, or the reason why CUPTI cannot be used.

Nothing here initializes CUDA. No function of libcupti may be called on a machine without
the driver: version 13.2 crashes then.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xsp_levels.native import stub
from xsp_levels.native.mapping import Mapping, mappings

# Without dependencies: cupti-python depends on a release of libcupti, for which pip would replace
# the framework's libcupti, and then the framework.
_INSTALL = (
    '`pip install --no-deps "cupti-python=={version}.*" pyelftools` (or the nearest release '
    "that there is)"
)
_NO_PYTHON = "cupti-python is not installed; {install} brings it"
_NO_DRIVER = (
    "there is no NVIDIA driver (libcuda.so.1 cannot be loaded); install it, and in a container "
    "pass the GPU on (--gpus all)"
)
_NO_DEVICE = "the NVIDIA driver is here, but no GPU is; in a container pass one on (--gpus all)"
_OLD_DRIVER = (
    "the NVIDIA driver is for CUDA {driver} at most, and CUPTI is of CUDA {cupti}; update the "
    "driver, or use a framework for CUDA {major} and {install}"
)
_MISMATCH = (
    "CUPTI is of CUDA {cupti}, and the CUDA that is loaded here of {cuda}; {install} brings the "
    "right one"
)
_SEVERAL = (
    "several libcupti are loaded ({paths}), and which of them cupti-python uses cannot be told; "
    "measure in a process in which only one is"
)
_PACKAGES = ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu{major}")


@dataclass(frozen=True, slots=True)
class LoadedLibraries:
    """The libraries of CUDA that are mapped into a process.

    Attributes:
        cupti: Address ranges of every libcupti, by its path.
        cudart: Major version of the CUDA runtime; None if no runtime is mapped.
    """

    cupti: dict[str, list[range]]
    cudart: int | None


def loaded(found: Iterable[Mapping] | None = None) -> LoadedLibraries:
    """Return every libcupti and the CUDA runtime that are mapped into a process.

    Args:
        found: The files mapped into the process; None: the files of this process.

    >>> loaded([Mapping(16, 32, 0, "/my lib/libcupti.so.13", executable=True)])
    LoadedLibraries(cupti={'/my lib/libcupti.so.13': [range(16, 32)]}, cudart=None)
    """
    cupti: dict[str, list[range]] = {}
    cudart = None
    for part in mappings() if found is None else found:
        name = os.path.basename(part.path)
        if name.startswith("libcupti.so"):
            cupti.setdefault(part.path, []).append(range(part.start, part.end))
        elif runtime := re.match(r"libcudart\.so\.(\d+)", name):
            cudart = cudart or int(runtime[1])
    return LoadedLibraries(cupti, cudart)


def unavailable() -> str | None:
    """Return why CUPTI cannot be used here and a remedy, None if CUPTI can be used."""
    try:
        # Without a driver, cupti-python would be of no use.
        return stub.unsupported() or _driver_missing() or _python_missing() or _mismatch()
    except (OSError, ValueError, AttributeError) as error:
        return f"CUPTI cannot be looked for: {error}"


def vendor() -> Any:
    """Return the module `cupti.cupti`.

    Raises:
        ImportError: cupti-python is missing or broken.
    """
    from cupti import cupti  # noqa: PLC0415

    return cupti


def libcupti() -> ctypes.CDLL:
    """Return libcupti, which the vendor's module has loaded with its first call.

    Raises:
        OSError: No libcupti is loaded, or several are and nothing tells which one is used.
    """
    found = ctypes.CDLL(used(loaded().cupti), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    found.cuptiActivityRegisterCallbacks.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    found.cuptiSubscribe.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
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


def used(mapped: dict[str, list[range]]) -> str:
    """Return the libcupti that cupti-python calls.

    Raises:
        OSError: There is no libcupti, or nothing tells which of several is called.
    """
    if not mapped:
        raise OSError("libcupti is not loaded")
    if len(mapped) == 1:
        return next(iter(mapped))
    address = _called()
    for path, parts in mapped.items():
        if any(address in part for part in parts):
            return path
    raise OSError(_SEVERAL.format(paths=", ".join(mapped)))


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
    """Return major and minor version out of CUDA's one number for both."""
    return number // 1000, number % 1000 // 10


def _python_missing() -> str | None:
    if "cupti" in sys.modules or importlib.util.find_spec("cupti") is not None:
        return None
    return _NO_PYTHON.format(install=_install(loaded().cudart))


def _driver_missing() -> str | None:
    if driver_version() is None:
        return _NO_DRIVER
    if Path("/proc/driver/nvidia/version").exists() and not list(Path("/dev").glob("nvidia[0-9]*")):
        return _NO_DEVICE
    return None


def _mismatch() -> str | None:
    cudart, driver = loaded().cudart, driver_version() or (0, 0)
    installed = _version_of("cupti-python")
    cupti = int(installed.split(".")[0]) if installed else None
    if cupti is None:
        return None
    if cudart is not None and cudart != cupti:
        return _MISMATCH.format(cupti=cupti, cuda=cudart, install=_install(cudart))
    if driver[0] < cupti:
        said, install = f"{driver[0]}.{driver[1]}", _install(driver[0])
        return _OLD_DRIVER.format(driver=said, cupti=cupti, major=driver[0], install=install)
    return None


def _install(major: int | None) -> str:
    """Return the command that installs cupti-python for a major version of CUDA, or for any."""
    # The version of the CUDA that the framework brought, as major and minor.
    found = [_version_of(name.format(major=major)) for name in _PACKAGES]
    found.append(getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None))
    versions = (".".join(version.split(".")[:2]) for version in found if version)
    installed_cuda = next((v for v in versions if major in (None, int(v.split(".")[0]))), None)
    return _INSTALL.format(version=installed_cuda or major or 13)


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _called() -> int:
    """Return the address of a function of libcupti that cupti-python calls; 0 if unknown."""
    try:
        from cupti._internal import cupti  # noqa: PLC0415

        return int(cupti._inspect_function_pointers()["__cuptiActivityRegisterCallbacks"])
    except (ImportError, AttributeError, KeyError):
        return 0
