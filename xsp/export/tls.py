"""TLS as certificates say: what the variables name, checked, as Python and gRPC want it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM format; what is None is left to the system.

    Attributes:
        authority: Certificates that the server's must descend from.
        client: Certificate by which this side shows who it is.
        key: Private key of `client`.
    """

    authority: Path | None = None
    client: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Read every file once.

        Raises:
            ValueError: One cannot be read or is not what it should be.
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
        """Return how Python makes a connection of it: the server's certificate is verified."""
        import ssl  # noqa: PLC0415

        context = ssl.create_default_context(cafile=self.authority)
        if self.client is not None:
            context.load_cert_chain(self.client, self.key)
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the bytes of authority, key and client: the order in which gRPC takes them."""
        authority, key, client = (
            None if file is None else file.read_bytes()
            for file in (self.authority or _system_authorities(), self.key, self.client)
        )
        return authority, key, client


def _system_authorities() -> Path | None:
    """Return the file of what the system trusts; None where there is none, or gRPC has its own.

    Left to itself gRPC trusts the list that it brings, which an organisation's own
    authority is not in.
    """
    import ssl  # noqa: PLC0415

    file = ssl.get_default_verify_paths().cafile
    if file is None or os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        return None
    return Path(file)


def trusting_context() -> ssl.SSLContext:
    """Return a context that takes any certificate: to see whether TLS is spoken at all."""
    import ssl  # noqa: PLC0415

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
