"""Reads tool, environment, rank, host and clock from the metadata of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TOOL = "torch.profiler"
_EPOCH = 10**18  # ns since 1970: in 2001; times since the machine started are smaller
# What torch.profiler's own handler names a file: host, process, and milliseconds since 1970.
_FILE = re.compile(r"(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?")


@dataclass(frozen=True, slots=True)
class Origin:
    """The tool, the environment, the rank and the host that recorded a file.

    Attributes:
        tool: The tool and its version, as far as the file tells it.
        environment: Devices, versions and other facts.
        rank: Number of the process among those of a distributed program; None if unknown.
        host: Name of the machine; empty if unknown.
    """

    tool: str = _TOOL
    environment: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None
    host: str = ""


def origin(metadata: Mapping[str, Any], path: Path) -> Origin:
    """Return the tool, the environment, the rank and the host that recorded a file."""
    versions = dict(_versions(metadata))
    named = _FILE.fullmatch(path.name)
    host = str(metadata.get("hostname") or (named["host"] if named else ""))
    torch = versions.get("torch")
    said = _distribution(metadata)
    distributed = {
        name: said[name] for name in ("backend", "world_size", "nccl_version") if name in said
    }
    environment: dict[str, Any] = {
        "host": host,
        "devices": list(_devices(metadata)),
        "versions": versions,
        **distributed,
    }
    return Origin(
        tool=f"{_TOOL} of PyTorch {torch}" if torch else _TOOL,
        environment={name: value for name, value in environment.items() if value},
        rank=_integer(_distribution(metadata).get("rank")),
        host=host,
    )


def unix_ns(metadata: Mapping[str, Any], first_ns: int) -> int | None:
    """Return the wall-clock time at time 0 of a file's clock, None if the file does not tell.

    Args:
        metadata: What the file says beside its events.
        first_ns: The first time in the file.
    """
    base = _integer(metadata.get("baseTimeNanoseconds"))
    if base is not None and 0 <= base < 1 << 62:
        return base if first_ns < _EPOCH else 0
    return 0 if first_ns > _EPOCH else None


def resident_threads(metadata: Mapping[str, Any]) -> dict[int, int]:
    """Return how many threads each device can hold at a time, by the device's number."""
    found = {}
    for device in _list(metadata.get("deviceProperties")):
        if isinstance(device, dict):
            keys = ("id", "numSms", "maxThreadsPerMultiprocessor")
            number, multiprocessors, threads = (_integer(device.get(key)) for key in keys)
            if number is not None and multiprocessors and threads:
                found[number] = multiprocessors * threads
    return found


def _devices(metadata: Mapping[str, Any]) -> Iterator[str]:
    for device in _list(metadata.get("deviceProperties")):
        if isinstance(device, dict):
            yield str(device.get("name") or "unnamed device")


def _versions(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, name in (("pytorch_version", "torch"), ("torch_version", "torch")):
        if metadata.get(key):
            yield name, str(metadata[key])
    for key in ("cuda_runtime_version", "cuda_driver_version"):
        if number := _integer(metadata.get(key)):  # 1000 times the major, 10 times the minor one
            yield _spaced(key), f"{number // 1000}.{number % 1000 // 10}"
    for key in ("hip_runtime_version", "hip_driver_version"):
        if number := _integer(metadata.get(key)):  # ten million times the major one, and so on
            yield _spaced(key), f"{number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"
    for key in ("cupti_version", "roctracer_version", "rocprofiler-sdk_version"):
        if metadata.get(key):
            yield _spaced(key), str(metadata[key])


def _spaced(key: str) -> str:
    return key.removesuffix("_version").replace("_", " ")


def _distribution(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    found = metadata.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) else None
