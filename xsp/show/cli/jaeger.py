"""Starts Jaeger on this machine in place of this process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from xsp.errors import XspError
from xsp.machine import cache_folder, data_folder, is_loopback

RELEASE = "2.13.0"  # as in docker-compose.yml and scripts/build-jaeger

CONFIGURATION = Path(__file__).with_name("jaeger.yaml")
UI_CONFIGURATION = Path(__file__).with_name("jaeger-ui.json")


@dataclass(frozen=True, slots=True)
class Port:
    """A port that Jaeger listens on.

    Attributes:
        variable: Environment variable of jaeger.yaml that sets another port.
        default: Number of the port where the variable is not set.
        purpose: What listens on the port, for people.
    """

    variable: str
    default: int
    purpose: str

    def number(self, environment: Mapping[str, str]) -> int:
        """Return the number of the port in an environment.

        Raises:
            XspError: The variable's value is not a port number.
        """
        text = environment.get(self.variable) or str(self.default)
        if not text.isascii() or not text.isdigit() or int(text) > 65535:
            raise XspError(f"{self.variable} is {text!r}, not a port: set a number up to 65535")
        return int(text)


UI = Port("XSP_JAEGER_UI_PORT", 16686, "its pages")
OTLP_GRPC = Port("XSP_JAEGER_OTLP_GRPC_PORT", 4317, "traces over gRPC")
OTLP_HTTP = Port("XSP_JAEGER_OTLP_HTTP_PORT", 4318, "traces over HTTP")
HEALTH = Port("XSP_JAEGER_HEALTH_PORT", 13133, "its health")
PORTS = (UI, OTLP_GRPC, OTLP_HTTP, HEALTH)


def find() -> Path | None:
    """Return Jaeger's program: as XSP_JAEGER says, on the PATH, or built by scripts/build-jaeger.

    Raises:
        XspError: XSP_JAEGER names something that cannot be run.
    """
    named = os.environ.get("XSP_JAEGER")
    if named:
        program = shutil.which(named)
        if program is None:
            raise XspError(f"XSP_JAEGER is {named!r}, which cannot be run: name the program Jaeger")
        return Path(program)
    found = shutil.which("jaeger") or shutil.which(
        str(cache_folder() / f"jaeger-{RELEASE}" / "jaeger")
    )
    return Path(found) if found else None


def command(program: Path) -> list[str]:
    """Return the command line that starts Jaeger in the foreground."""
    return [str(program), "--config", str(CONFIGURATION)]


def environment(data: Path, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables to start Jaeger with.

    Args:
        data: Folder for the traces.
        inherited: Variables of this process; they override the defaults of xsp.
    """
    defaults = {"XSP_JAEGER_DATA": str(data), "XSP_JAEGER_UI_CONFIG": str(UI_CONFIGURATION)}
    # To Jaeger a variable that is set but empty is an empty value, not a missing one.
    ours = ("XSP_JAEGER", "JAEGER_LISTEN_HOST")
    given = {name: text for name, text in inherited.items() if text or not name.startswith(ours)}
    return defaults | given


def folder() -> Path:
    """Return the folder for traces where XSP_JAEGER_DATA is not set."""
    return data_folder() / "jaeger"


def run(say: Callable[[str], None]) -> NoReturn:
    """Replace this process by Jaeger, which then has the terminal, signals and exit code.

    Args:
        say: Prints one line for the user.

    Raises:
        XspError: Jaeger is not installed or cannot be started, a variable is not a port,
            or the folder cannot be made. Whether ports are free, Jaeger itself checks.
    """
    program = find()
    if program is None:
        raise XspError(absence())
    variables = environment(folder())
    for port in PORTS:
        port.number(variables)
    _make(Path(variables["XSP_JAEGER_DATA"]))
    for line in greeting(variables):
        say(line)
    # os.execve throws buffered output away.
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, command(program), variables)
    except OSError as error:
        raise XspError(
            f"{program} cannot be started: {error.strerror or error}; it has to be Jaeger "
            f"{RELEASE} for this machine"
        ) from error


def greeting(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield lines for the user: Jaeger's addresses, folder and variables."""
    host, listening = _host(variables), variables.get("JAEGER_LISTEN_HOST") or "127.0.0.1"
    yield f"Jaeger's pages: http://{host}:{UI.number(variables)}"
    yield f"send a trace:   xsp export FILE --to http://{host}:{OTLP_HTTP.number(variables)}"
    yield f"traces are kept in {variables['XSP_JAEGER_DATA']}; Ctrl-C stops it"
    yield (
        "if an address is already in use, one may run already; XSP_JAEGER_UI_PORT, "
        "XSP_JAEGER_OTLP_HTTP_PORT and others (xsp jaeger --help) name other ports"
    )
    if not is_loopback(listening.strip("[]")):
        yield (
            f"JAEGER_LISTEN_HOST is {listening}: everybody who reaches this machine there can read "
            "and write traces; without it Jaeger is for this machine only"
        )


def absence() -> str:
    """Return the message that Jaeger is not installed, and how to install it."""
    return (
        "Jaeger is not installed. Run `docker compose up -d` beside xsp's docker-compose.yml, or "
        f"unpack Jaeger {RELEASE} (jaegertracing.io/download) on the PATH "
        "(or: scripts/build-jaeger)."
    )


def _host(variables: Mapping[str, str]) -> str:
    host = variables.get("JAEGER_LISTEN_HOST") or "127.0.0.1"
    return "127.0.0.1" if host in ("0.0.0.0", "[::]", "::") else host


def _make(data: Path) -> None:
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise XspError(
            f"{data} cannot be made for the traces: {error.strerror or error}; "
            "set XSP_JAEGER_DATA to a folder of yours"
        ) from error
