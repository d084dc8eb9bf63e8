"""The standard OTEL_EXPORTER_OTLP_* variables; those for traces win over those for all signals.

A variable that is empty is as one that is not set.
https://opentelemetry.io/docs/specs/otel/protocol/exporter/ names them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from xsp.export.tls import Certificates

Compression = Literal["gzip", "none"]

_ALL = "OTEL_EXPORTER_OTLP_"
_TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
_TIMEOUT_MS = 10_000
_DAY_MS = 24 * 3600 * 1000
# Names that gRPC takes; HTTP would take a few characters more.
_NAME = re.compile(r"[0-9a-z_.-]+")
_TEXT = re.compile(r"[\x20-\x7e]*")


def find(name: str) -> tuple[str, str]:
    """Return a value, empty if there is none, and the variable that it is in."""
    for variable in (_TRACES + name, _ALL + name):
        value = os.environ.get(variable, "").strip()
        if value:
            return value, variable
    return "", _ALL + name


def is_for_traces(variable: str) -> bool:
    """Return whether a variable is for traces only."""
    return variable.startswith(_TRACES)


def protocol() -> Literal["grpc", "http/protobuf"]:
    """Return the protocol; gRPC unless said otherwise."""
    value, variable = find("PROTOCOL")
    if value in ("", "grpc"):
        return "grpc"
    if value == "http/protobuf":
        return "http/protobuf"
    raise ValueError(f"{variable}={value!r}: there are grpc and http/protobuf")


def insecure() -> bool:
    """Return whether an endpoint without a scheme is spoken to without TLS."""
    value, variable = find("INSECURE")
    if value.lower() not in ("", "true", "false"):
        raise ValueError(f"{variable}={value!r}: there are true and false")
    return value.lower() == "true"


def headers() -> dict[str, str]:
    """Return the headers, `key1=value1,key2=value2` with percent-encoding, names in lower case."""
    value, variable = find("HEADERS")
    found: dict[str, str] = {}
    for number, entry in enumerate(value.split(",") if value else (), start=1):
        key, separator, text = entry.partition("=")
        key, text = unquote(key.strip()).lower(), unquote(text.strip())
        if not entry.strip():
            continue
        if not separator or not _NAME.fullmatch(key) or not _TEXT.fullmatch(text):
            # The entry itself is not shown: it may be a credential.
            raise ValueError(
                f"{variable}: entry {number} is not a header; the form is key1=value1,key2=value2, "
                "in ASCII, with %20 for a space and %2C for a comma in a value"
            )
        found[key] = text
    return found


def timeout_s() -> float:
    """Return the timeout in seconds (the variable has milliseconds)."""
    value, variable = find("TIMEOUT")
    if not value:
        return _TIMEOUT_MS / 1000
    if not (value.isascii() and value.isdigit() and 0 < int(value[:12]) <= _DAY_MS):
        raise ValueError(f"{variable}={value!r}: it is a number of milliseconds, 10000 by default")
    return int(value) / 1000


def compression() -> Compression:
    """Return how requests are packed; not at all unless said otherwise."""
    value, variable = find("COMPRESSION")
    if value in ("", "none"):
        return "none"
    if value == "gzip":
        return "gzip"
    raise ValueError(f"{variable}={value!r}: there are gzip and none")


def certificates() -> Certificates:
    """Return what is named for TLS."""
    files = (find(name)[0] for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    return Certificates(*(Path(file) if file else None for file in files))
