"""`xsp export` and `xsp jaeger`: a trace file and destinations in, delivered spans out."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

import click

from xsp.cli import terminal
from xsp.cli.option import span_options, timeline_option, usage
from xsp.cli.reading import FILE, read

if TYPE_CHECKING:
    from xsp.export import Delivery
    from xsp.trace import Trace

_PATIENCE_S = 2.0

T = TypeVar("T")

DESTINATION = "DESTINATION"

_EXPORT_HELP = """Take the trace in FILES to Jaeger, any OTLP endpoint, or another file format.

FILES are a trace that xsp saved, or recordings of other tools (see xsp import).

\b
DESTINATION is one of
  otlp+http://HOST:4318    OTLP over HTTP; otlp+https:// with TLS
  otlp://HOST:4317         OTLP over gRPC (xsp[grpc]); otlps:// with TLS
  NAME.otlp.json           OTLP in JSON, for the Jaeger UI's upload
  NAME.perfetto.json       for ui.perfetto.dev and chrome://tracing
  NAME.speedscope.json     for speedscope.app: a profile per thread and stream
  NAME.folded              stacks with ns, for flamegraph.pl, inferno and others
  NAME.parquet             the spans as a table
Without --to it is what the OTEL_EXPORTER_OTLP_* variables say, else a
Jaeger on this machine. Headers, certificates, compression and timeout come
from these variables in any case.

A trace that was not taken whole is kept, and xsp export --spool sends it
again, under the same ids.
"""

_EXPORT_EPILOG = """\b
Examples:
  xsp export resnet50.xsp                                   to Jaeger on this machine
  xsp export resnet50.xsp --to otlp+http://jaeger:4318 --typical-runs
  xsp export resnet50.xsp --to resnet50.perfetto.json
  xsp export resnet50.xsp --to resnet50.folded && flamegraph.pl resnet50.folded
  xsp export gpt2.xsp --max-spans 10000
  xsp export --spool                                        what failed before, again
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
  XSP_JAEGER_HEALTH_PORT, XSP_JAEGER_QUERY_PORT
                              where it tells its health, and answers over gRPC
"""


def _existing(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Return the files to export; refuse a destination that stands among them, without --to."""
    from xsp.export import looks_like_destination  # noqa: PLC0415

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
    help="Also a typical run of every rung, as a trace that spans link to.",
)
@timeline_option
@click.option("--spool", is_flag=True, help="Send what was kept; with FILES, only these.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def export(files: tuple[Path, ...], *, spool: bool, **options: Any) -> None:
    """Take a trace elsewhere."""
    check_options(options, options["destinations"], typical_runs=options["typical_runs"])
    if spool:
        _send_spooled(files, options)
        return
    if not files:
        raise click.UsageError("which trace? Give the FILE that xsp profile saved, or --spool")
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
    from xsp.cli import jaeger as server  # noqa: PLC0415

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
        raise click.UsageError("--full and --max-spans exclude each other: give one of them")
    if destinations:
        from xsp.export import check  # noqa: PLC0415

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
        with _patience() if over_network else nullcontext():
            done = trace.export(destination, max_spans=most, typical_runs=typical_runs)
        if done.sent < trace.spans.height and not as_json:
            cut = f"{done.sent:,} spans stand for the trace's {trace.spans.height:,}"
            terminal.say(f"{cut}; --full takes all of them to {done.destination}")
        return done

    _each(export_to, destinations, as_json=as_json)


@contextmanager
def _patience() -> Iterator[None]:
    """Print that spans are still being sent, if the block takes long."""
    note = "still sending: it is tried until OTEL_EXPORTER_OTLP_TIMEOUT, by default 10 s a request"
    timer = threading.Timer(_PATIENCE_S, click.echo, [note], {"err": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _send_spooled(files: tuple[Path, ...], options: dict[str, Any]) -> None:
    from xsp.export import (  # noqa: PLC0415
        endpoint,
        send_spool,
        spool_files,
    )

    given = [name for name in ("full", "max_spans", "typical_runs") if options[name]]
    if options["timeline"] == "measured":
        given.append("timeline")
    if given:
        raise click.UsageError(
            f"what is spooled is sent as it is: --{given[0].replace('_', '-')} is not for --spool"
        )
    if len(options["destinations"]) > 1:
        raise click.UsageError("what is spooled is sent once: give --to at most once")
    to = usage(lambda: [endpoint(destination) for destination in options["destinations"]])
    files = files or spool_files()
    if not files:
        click.echo("nothing is spooled", err=True)

    def send(path: Path) -> Delivery:
        with _patience():
            return send_spool(path, *to)

    _each(send, files, as_json=options["as_json"])


def _each(work: Callable[[T], Delivery], items: Iterable[T], *, as_json: bool) -> None:
    """Deliver each item and print a line for each; then raise all failures as one error."""
    from xsp.errors import ExportError  # noqa: PLC0415

    def failure(item: T) -> ExportError | ValueError | None:
        try:
            _say(work(item), as_json=as_json)
        except ValueError as error:
            return error
        except ExportError as error:
            if as_json and error.delivery is not None:
                _say(cast("Delivery", error.delivery), as_json=True)
            return error
        return None

    failures = [error for item in items if (error := failure(item)) is not None]
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
    from xsp.cli.jaeger import OTLP_GRPC, OTLP_HTTP, UI  # noqa: PLC0415
    from xsp.errors import XspError  # noqa: PLC0415
    from xsp.machine import is_loopback  # noqa: PLC0415

    at = urlsplit(done.destination)
    host = at.hostname or "localhost"
    shown = f"[{host}]" if ":" in host else host
    usual = UI.variable in os.environ or at.port in (None, OTLP_GRPC.default, OTLP_HTTP.default)
    if not usual:  # the port of Jaeger's pages is not known either
        return f"the trace's id is {done.trace_id}"
    where = "in Jaeger" if is_loopback(host) else "if that is Jaeger"
    try:
        return f"{where}: http://{shown}:{UI.number(os.environ)}/trace/{done.trace_id}"
    except XspError as error:
        return str(error)
