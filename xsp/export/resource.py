"""The resource: a trace's environment and standard variables in, resource attributes out.

Names are those of OpenTelemetry's conventions. All services of a trace have the same
attributes: where the host differs between two services, Jaeger moves spans for clock skew.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from xsp import __version__

DEFAULT_SERVICE = "xsp"

_UNKNOWN_HOST = "unknown"
_NEVER_EMPTY = ("host.id", "host.name")
# Packages that xsp itself needs say nothing about the model.
_OWN_TOOLS = frozenset({"polars", "click", "rich", "psutil"})
_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv6l": "arm32",
    "armv7l": "arm32",
    "armv8l": "arm32",
    "i386": "x86",
    "i486": "x86",
    "i586": "x86",
    "i686": "x86",
    "ppc": "ppc32",
    "ppc64le": "ppc64",
}
_SYSTEMS = {"macos": "darwin"}
_PLAIN = {
    "host.cpu.model.name": "cpu",
    "os.description": "os",
    "process.pid": "pid",
    "process.executable.name": "executable",
    "process.runtime.version": "python",
}
_MALFORMED = re.compile(r"%(?![0-9A-Fa-f]{2})")

_log = logging.getLogger("xsp.export")


def resource(
    environment: Mapping[str, Any], variables: Mapping[str, str] = os.environ
) -> dict[str, str | int]:
    """Return the attributes that all resources of a trace share: all but `service.name`.

    Facts that the trace lacks are left out, except `host.id` and `host.name`. Attributes in
    `OTEL_RESOURCE_ATTRIBUTES` win.

    Args:
        environment: The entry `environment` of a trace's metadata.
        variables: Environment variables.
    """
    found: dict[str, Any] = {
        **_host(environment),
        **_system(environment),
        **{name: environment.get(key) for name, key in _PLAIN.items()},
        **dict(_versions(environment)),
        **_devices(environment),
    }
    known = {name: value for name, value in found.items() if value not in (None, "")}
    given = _given(variables)
    given.pop("service.name", None)
    kept = {name: v for name, v in given.items() if v or name not in _NEVER_EMPTY}
    return {**known, **kept}


def service_name(variables: Mapping[str, str] = os.environ) -> str:
    """Return the user's name for the service, or `DEFAULT_SERVICE`.

    `OTEL_SERVICE_NAME` wins over `service.name` in `OTEL_RESOURCE_ATTRIBUTES`.
    """
    name = variables.get("OTEL_SERVICE_NAME", "").strip()
    return name or _given(variables).get("service.name") or DEFAULT_SERVICE


def _host(environment: Mapping[str, Any]) -> dict[str, Any]:
    name = environment.get("host") or _UNKNOWN_HOST
    machine = str(environment.get("machine") or "").lower()
    return {
        # Jaeger's query service tells machines apart by `ip` alone, and moves spans without
        # `ip` as if they came from machines whose clocks differ.
        "ip": "127.0.0.1",
        "host.id": environment.get("host_id") or name,
        "host.name": name,
        "host.arch": _ARCHITECTURES.get(machine, machine),
    }


def _system(environment: Mapping[str, Any]) -> dict[str, Any]:
    # `platform.platform()` begins with the system's name: Linux-6.18-x86_64-…
    system = str(environment.get("os") or "").partition("-")[0].lower()
    return {
        "os.type": _SYSTEMS.get(system, system),
        "process.runtime.name": str(environment.get("python_implementation") or "").lower(),
        "telemetry.sdk.name": "xsp",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
    }


def _versions(environment: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for package, version in (environment.get("versions") or {}).items():
        if package not in _OWN_TOOLS:
            yield f"xsp.versions.{package}", version


def _devices(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of GPUs and the distinct values of their name, driver and memory.

    OpenTelemetry's `hw.*` attributes describe a single component, not all GPUs of a machine.
    """
    gpus = environment.get("gpus") or ()
    if not gpus:
        return {}
    told: dict[str, Any] = {"xsp.gpu.count": len(gpus)}
    for field in ("name", "driver", "memory"):
        values = (str(gpu[field]) for gpu in gpus if field in gpu)
        told[f"xsp.gpu.{field}"] = "; ".join(dict.fromkeys(values))
    return told


def _given(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes in `OTEL_RESOURCE_ATTRIBUTES`: `key=value,…`, percent-encoded."""
    return dict(_pairs(variables.get("OTEL_RESOURCE_ATTRIBUTES", "")))


@functools.lru_cache(maxsize=1)  # so that each malformed text is warned of once
def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    pairs = {part: _pair(part) for part in parts}
    for part in (part for part, pair in pairs.items() if pair is None):
        _log.warning(
            "OTEL_RESOURCE_ATTRIBUTES holds %r, which is not key=value and is left out: write "
            "key1=value1,key2=value2, with commas and per cent signs as %%2C and %%25",
            part,
        )
    return tuple(pair for pair in pairs.values() if pair is not None)


def _pair(text: str) -> tuple[str, str] | None:
    key, separator, value = (part.strip() for part in text.partition("="))
    if separator and key and not _MALFORMED.search(text):
        with suppress(UnicodeError):
            return _decoded(key), _decoded(value)
    return None


def _decoded(text: str) -> str:
    decoded = unquote(text, errors="strict")
    decoded.encode()  # raises UnicodeError for bytes of the environment that are no UTF-8
    return decoded
