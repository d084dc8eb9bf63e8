"""The OTEL_EXPORTER_OTLP_* environment variables in, checked values out.

Variables for traces win over variables for all signals, and an empty variable counts as not
set: https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import ssl

Compression = Literal["gzip", "none"]

_ALL = "OTEL_EXPORTER_OTLP_"
_TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
_TIMEOUT_MS = 10_000
_DAY_MS = 24 * 3600 * 1000
# Names of headers that gRPC takes; HTTP would take a few characters more.
_NAME = re.compile(r"[0-9a-z_.-]+")
_TEXT = re.compile(r"[\x20-\x7e]*")

_log = logging.getLogger("xsp.export")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files for TLS; where one is None, the system's default is used.

    Attributes:
        authority: Certificates of the issuers to be trusted.
        client: Certificate of this side, the client.
        key: Private key of `client`.
    """

    authority: Path | None = None
    client: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Read every file once.

        Raises:
            ValueError: A file cannot be read or holds something else.
        """
        if (self.client is None) != (self.key is None):
            raise ValueError(
                "a client's certificate and its key belong together: set both "
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY"
            )
        try:
            self.context()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = ", ".join(str(file) for file in (self.authority, self.client, self.key) if file)
            raise ValueError(
                f"the certificates cannot be used: {error} ({files}); they are PEM files, named "
                "by OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY"
            ) from None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for HTTP, which verifies the server's certificate."""
        import ssl  # noqa: PLC0415

        context = ssl.create_default_context(cafile=self.authority)
        if self.client is not None:
            context.load_cert_chain(self.client, self.key)
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the contents of authority, key and client, in gRPC's order."""
        authority, key, client = (
            None if file is None else file.read_bytes()
            for file in (self.authority or _system_authorities(), self.key, self.client)
        )
        return authority, key, client


def find(name: str) -> tuple[str, str]:
    """Return the value of a setting, empty if it is not set, and the variable's full name."""
    for variable in (_TRACES + name, _ALL + name):
        value = os.environ.get(variable, "").strip()
        if value:
            return value, variable
    return "", _ALL + name


def is_for_traces(variable: str) -> bool:
    """Return whether a variable is for traces only."""
    return variable.startswith(_TRACES)


def protocol() -> Literal["grpc", "http/protobuf"]:
    """Return the protocol; OTLP over HTTP unless said otherwise, as the specification has it."""
    value, variable = find("PROTOCOL")
    if value in ("", "http/protobuf"):
        return "http/protobuf"
    if value == "grpc":
        return "grpc"
    raise ValueError(f"{variable}={value!r}: there are grpc and http/protobuf")


def insecure() -> bool:
    """Return whether an endpoint without a scheme is spoken to without TLS."""
    value, variable = find("INSECURE")
    if value.lower() not in ("", "true", "false"):
        raise ValueError(f"{variable}={value!r}: there are true and false")
    return value.lower() == "true"


def headers() -> dict[str, str]:
    """Return the headers of `key1=value1,key2=value2`, percent-decoded, names in lower case.

    Malformed entries are left out with a warning, as the specification says.
    """
    return dict(_headers(*find("HEADERS")))


@functools.lru_cache(maxsize=1)  # so that each list is warned of once
def _headers(value: str, variable: str) -> tuple[tuple[str, str], ...]:
    entries = value.split(",")
    found = [_header(entry) for entry in entries]
    for number, (entry, header) in enumerate(zip(entries, found, strict=True), start=1):
        if entry.strip() and header is None:
            # The entry itself may be a credential and is not shown.
            _log.warning(
                "%s: entry %d is not a header and is left out; the form is "
                "key1=value1,key2=value2, in ASCII, with %%20 for a space and %%2C for a comma "
                "in a value",
                variable,
                number,
            )
    return tuple(header for header in found if header is not None)


def _header(entry: str) -> tuple[str, str] | None:
    """Return name and value of an entry; None where the entry is malformed."""
    from opentelemetry.util.re import parse_env_headers  # noqa: PLC0415

    with _muted("opentelemetry.util.re"):  # which logs malformed entries, credentials and all
        parsed = parse_env_headers(entry, liberal=True)
    for name, text in parsed.items():
        if _NAME.fullmatch(name) and _TEXT.fullmatch(text):
            return name, text
    return None


@contextmanager
def _muted(name: str) -> Iterator[None]:
    """Keep a logger quiet for a block."""
    logger = logging.getLogger(name)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def timeout_s() -> float:
    """Return the timeout in seconds (the variable has milliseconds)."""
    value, variable = find("TIMEOUT")
    if not value:
        return _TIMEOUT_MS / 1000
    if not (value.isascii() and value.isdigit() and 0 < int(value[:12]) <= _DAY_MS):
        raise ValueError(f"{variable}={value!r}: it is a number of milliseconds, 10000 by default")
    return int(value) / 1000


def compression() -> Compression:
    """Return how requests are compressed, `none` by default."""
    value, variable = find("COMPRESSION")
    if value in ("", "none"):
        return "none"
    if value == "gzip":
        return "gzip"
    raise ValueError(f"{variable}={value!r}: there are gzip and none")


def certificates() -> Certificates:
    """Return the files named for TLS."""
    files = (find(name)[0] for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    return Certificates(*(Path(file) if file else None for file in files))


def _system_authorities() -> Path | None:
    """Return the file of issuers that the system trusts; None without one, or where gRPC has one.

    By default gRPC trusts a list of its own, which lacks an organisation's own issuer.
    """
    import ssl  # noqa: PLC0415

    file = ssl.get_default_verify_paths().cafile
    if file is None or os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        return None
    return Path(file)
