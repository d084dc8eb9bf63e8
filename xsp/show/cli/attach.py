"""`xsp attach` profiles a running process for some seconds."""

from __future__ import annotations

from pathlib import Path

import click

from xsp.show.cli import terminal
from xsp.show.cli.option import output_option, tree_options, usage

_HELP = """Profile the running Python process PID for some seconds, and print its tree.

From Python 3.14 on, xsp gets into the process by itself; both need the same
version of Python. In an older process call xsp.profile_on_signal() once, at the
start: it costs nothing until you attach.
"""

_EPILOG = """\b
Examples:
  xsp attach 4242
  xsp attach 4242 --seconds 30 --levels 3 -o serving.xsp
"""


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="How long to profile.",
)
@click.option("--levels", default="2", show_default=True, help="As for profile.")
@output_option("File for the trace.  [default: xsp-PID.xsp]")
@tree_options
def attach(pid: int, seconds: float, levels: str, output: Path | None, **columns: bool) -> None:
    """Attach to a process."""
    from xsp.machine import check_writable  # noqa: PLC0415
    from xsp.measuring.program import attach as profile_process  # noqa: PLC0415
    from xsp.trace import load  # noqa: PLC0415

    to = output or Path(f"xsp-{pid}.xsp")
    check_writable(to)
    begun = f"xsp: profiling process {pid} for {seconds:g} s"
    path = usage(
        lambda: profile_process(
            pid, to, seconds=seconds, levels=levels, begun=lambda: terminal.say(begun)
        )
    )
    terminal.show(load(path).tree(**columns))
    terminal.say(f"saved to {path}; print it again with: xsp show {path}")
