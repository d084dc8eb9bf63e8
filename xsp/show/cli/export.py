"""The commands `xsp export`, which sends a saved trace, and `xsp jaeger`, which takes it."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import urlsplit

import click

from xsp.show.cli import terminal
from xsp.show.cli.option import span_options, timeline_option, usage
from xsp.show.cli.reading import FILE, read

if TYPE_CHECKING:
    from xsp.show.export import Delivery
    from xsp.trace import Trace

_PATIENCE_S = 2.0
_LISTENING_S = 0.8  # for a server on this machine to take a connection

DESTINATION = "DESTINATION"

_EXPORT_HELP = """Take the trace in FILES to Jaeger, any OTLP endpoint, or another file format.

FILES are a trace that xsp saved, or recordings of other tools (see xsp import).

\b
DESTINATION is one of
  http://HOST:4318         OTLP over HTTP; https:// with TLS
  NAME.otlp.json           OTLP in JSON, for the Jaeger UI's upload
  NAME.pftrace             for ui.perfetto.dev, also NAME.pftrace.gz
  NAME.perfetto.json       for viewers of Chrome's JSON
  NAME.ctf                 a folder for Trace Compass and babeltrace2
  NAME.speedscope.json     for speedscope.app: a profile per thread and stream
  NAME.folded              stacks with ns, for flamegraph.pl, inferno and others
  NAME.parquet             the spans as a table
Without --to it is what the OTEL_EXPORTER_OTLP_* variables say, else a
Jaeger on this machine. Headers, certificates, compression and timeout come
from these variables in any case.

The saved trace has the ids of its spans: to export it again sends them under
the same ids.
"""

_EXPORT_EPILOG = """\b
Examples:
  xsp export resnet50.xsp                                   to Jaeger on this machine
  xsp export resnet50.xsp --to http://jaeger:4318 --typical-runs
  xsp export resnet50.xsp --to resnet50.pftrace
  xsp export resnet50.xsp --to resnet50.folded && flamegraph.pl resnet50.folded
  xsp export gpt2.xsp --max-spans 10000
"""

_JAEGER_EPILOG = """\b
Examples:
  xsp jaeger                            then, in another terminal:
  xsp export resnet50.xsp

\b
Variables:
  XSP_JAEGER                  the program, if it is not on the PATH
  XSP_JAEGER_DATA             folder for the traces
  XSP_JAEGER_UI_PORT          its pages; xsp export goes by it too
  XSP_JAEGER_OTLP_GRPC_PORT, XSP_JAEGER_OTLP_HTTP_PORT
                              where it takes traces
  XSP_JAEGER_HEALTH_PORT      where it tells its health
"""


def _existing(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Return the files to export; refuse a destination that stands among them, without --to."""
    from xsp.show.export import looks_like_destination  # noqa: PLC0415

    if len(texts) > 1 and looks_like_destination(texts[-1]):
        files, to = " ".join(texts[:-1]), texts[-1]
        what = "send it there" if "://" in to else "write a file"
        raise click.UsageError(f"to {what}: xsp export {files} --to {to}", ctx)
    return tuple(FILE.convert(text, param, ctx) for text in texts)


@click.command(help=_EXPORT_HELP, epilog=_EXPORT_EPILOG)
@click.argument("files", nargs=-1, type=click.Path(), callback=_existing)
@click.option(
    "--to", "-o", "destinations", multiple=True, metavar=DESTINATION, help="May be repeated."
)
@span_options
@click.option(
    "--typical-runs",
    "--runs",
    "typical_runs",
    is_flag=True,
    help="Also a typical run of every pass, as a trace that spans link to.",
)
@timeline_option
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def export(files: tuple[Path, ...], **options: Any) -> None:
    """Take a trace elsewhere."""
    check_options(options, options["destinations"], typical_runs=options["typical_runs"])
    if not files:
        raise click.UsageError("No trace is given. Name one: xsp export train.xsp")
    trace = read(files)
    if options["timeline"] == "measured":
        trace = trace.as_measured()
    to = options["destinations"] or (None,)
    deliver(trace, to, options, typical_runs=options["typical_runs"], as_json=options["as_json"])


@click.command(epilog=_JAEGER_EPILOG)
def jaeger() -> NoReturn:
    """Start a Jaeger on this machine that keeps what it is sent; Ctrl-C stops it.

    It is the configuration that docker-compose.yml uses, for where there is no Docker.
    """
    from xsp.show.cli import jaeger as server  # noqa: PLC0415

    server.run(click.echo)


def check_options(
    options: dict[str, Any], destinations: Sequence[str], *, typical_runs: bool = False
) -> None:
    """Verify the options of an export, before there is a trace.

    Raises:
        click.UsageError: Options exclude each other, there is no such destination, or the
            destination does not take typical runs.
    """
    if options["full"] and options["max_spans"]:
        raise click.UsageError("--full and --max-spans exclude each other. Give one of them.")
    if destinations:
        from xsp.show.export import check  # noqa: PLC0415

        for destination in destinations:
            usage(partial(check, destination, typical_runs=typical_runs))


def deliver(
    trace: Trace,
    destinations: Sequence[str | None],
    options: dict[str, Any],
    *,
    typical_runs: bool = False,
    as_json: bool = False,
) -> None:
    """Export a trace as the options say, and print a line for each destination.

    Raises:
        click.UsageError: There is no such destination.
        ExportError: Not every span arrived everywhere.
    """
    most: int | Literal["auto"] | None = None if options["full"] else options["max_spans"] or "auto"

    def export_to(destination: str | None) -> Delivery:
        over_network = destination is None or "://" in destination
        if over_network:
            _check_listening(destination, trace.spans.height)
        with _patience() if over_network else nullcontext():
            done = trace.export(destination, max_spans=most, typical_runs=typical_runs)
        if done.sent < trace.spans.height and not as_json:
            cut = f"{done.sent:,} spans stand for the trace's {trace.spans.height:,}"
            terminal.say(f"{cut}; --full takes all of them to {done.destination}")
        return done

    _each(export_to, destinations, as_json=as_json)


def _check_listening(destination: str | None, count: int) -> None:
    """Verify that a server listens, if the spans are to go to this machine.

    Raises:
        ExportError: Nobody listens there.
    """
    from xsp.errors import ExportError  # noqa: PLC0415
    from xsp.machine import is_loopback  # noqa: PLC0415
    from xsp.show.export import Delivery, endpoint  # noqa: PLC0415

    url = str(endpoint(destination))
    at = urlsplit(url)
    host, port = at.hostname or "localhost", at.port or (443 if at.scheme == "https" else 80)
    if not is_loopback(host):
        return
    try:
        socket.create_connection((host, port), _LISTENING_S).close()
    except OSError as error:
        to = "" if destination is None else f" --to {at.scheme}://{at.netloc}"
        message = (
            f"No server takes traces at {at.scheme}://{at.netloc} ({error.strerror or error}). "
            f"Start one with `xsp jaeger`, then: xsp export FILE.xsp{to}"
        )
        raise ExportError(message, Delivery(count, 0, 0, url, "", message)) from error


@contextmanager
def _patience() -> Iterator[None]:
    """Print that spans are still being sent, if the block takes long."""
    note = "still sending: a request may take OTEL_EXPORTER_OTLP_TIMEOUT, by default 10 s"
    timer = threading.Timer(_PATIENCE_S, click.echo, [note], {"err": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _each(
    work: Callable[[str | None], Delivery], destinations: Sequence[str | None], *, as_json: bool
) -> None:
    """Deliver to each destination and print a line for each; then raise all failures as one."""
    from xsp.errors import ExportError  # noqa: PLC0415

    failures: list[ExportError | ValueError] = []
    for destination in destinations:
        try:
            _say(work(destination), as_json=as_json)
        except (ExportError, ValueError) as error:
            failures.append(error)
            if as_json and isinstance(error, ExportError) and error.delivery is not None:
                _say(error.delivery, as_json=True)
    if not failures:
        return
    text = "\n".join(map(str, failures))
    failed = [error for error in failures if isinstance(error, ExportError)]
    if not failed:
        raise click.UsageError(text) from failures[0]
    counted = (error.delivery for error in failed if error.delivery is not None)
    raise ExportError(text, next(counted, None)) from failed[0]


def _say(done: Delivery, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(done), default=str))
        return
    terminal.say(f"{done.accepted:,} of {done.sent:,} spans to {done.destination}")
    if done.trace_id and "://" in done.destination:
        terminal.say(_page(done))


def _page(done: Delivery) -> str:
    """Return the address of the trace's page in Jaeger, or the trace's id if that is unknown."""
    from xsp.errors import XspError  # noqa: PLC0415
    from xsp.machine import is_loopback  # noqa: PLC0415
    from xsp.show.cli.jaeger import OTLP_HTTP, UI  # noqa: PLC0415

    at = urlsplit(done.destination)
    host = at.hostname or "localhost"
    shown = f"[{host}]" if ":" in host else host
    usual = UI.variable in os.environ or at.port in (None, OTLP_HTTP.default)
    if not usual:  # the port of Jaeger's pages is not known either
        return f"the trace's id is {done.trace_id}"
    where = "in Jaeger" if is_loopback(host) else "if that is Jaeger"
    try:
        return f"{where}: http://{shown}:{UI.number(os.environ)}/trace/{done.trace_id}"
    except XspError as error:
        return str(error)
