"""Defines the command `xsp`, runs its commands, and turns errors into exit codes.

`doctor` is here, the other commands in modules of their names. Modules of this
room import only click at the top, so that help and completion come at once.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from xsp.show.cli import exit_code, terminal
from xsp.show.cli.agent import mcp, skill
from xsp.show.cli.answer import analyze, compare, report, show
from xsp.show.cli.attach import attach
from xsp.show.cli.counters import counters
from xsp.show.cli.demo import demo
from xsp.show.cli.energy import energy
from xsp.show.cli.export import export, jaeger
from xsp.show.cli.profile import profile
from xsp.show.cli.reading import import_files
from xsp.show.cli.record import record
from xsp.show.cli.zoo import sweep, zoo

_HELP = """\b
Profile machine-learning models across the stack, without the profiler in the numbers.
`xsp train.py` is short for `xsp profile train.py`.

\b
Measure
  xsp profile train.py                  profile a script, a function or a model
  xsp attach PID                        profile a running process for some seconds
  xsp sweep torchvision:resnet50        find the best batch size, threads or precision
  xsp energy torchvision:resnet50       measure the energy of a step and of layers
  xsp zoo run zoo.toml                  measure many models, and make one table

\b
Look
  xsp show train.xsp                    print the tree of a saved trace
  xsp report train.xsp --open           write one HTML page with everything
  xsp analyze train.xsp                 print advice, and all questions it can answer
  xsp compare before.xsp after.xsp      tell slowdowns from noise
  xsp counters train.xsp python train.py  count events of the slowest GPU kernels

\b
Exchange
  xsp import trace.json.gz              convert a trace of another tool
  xsp export train.xsp                  send it to Jaeger, OTLP or a file
  xsp jaeger                            start Jaeger on this machine

\b
Set up
  xsp demo                              show a profile of a GPU program, nothing needed
  xsp doctor                            show what this machine can measure
  xsp skill                             print how a coding agent uses xsp; xsp mcp serves it
"""

_EPILOG = """\b
Exit codes:
    0  done
    1  the target raised an exception (a script: its own exit code)
    2  wrong usage, or an unknown target
    3  xsp could not measure it, or could not read or write a file
    4  not every span could be exported; xsp counted the rest
    5  xsp compare: a condition of --fail-if holds
  130  interrupted; xsp kept all that was complete

\b
Shell completion, for bash (zsh and fish alike), in ~/.bashrc:
  eval "$(_XSP_COMPLETE=bash_source xsp)"
"""


# What other tools, and xsp's own API, call the commands.
_CALLED = {
    **dict.fromkeys(("measure", "run", "trace"), ". Use: xsp profile"),
    **dict.fromkeys(("view", "print", "tree"), ". Use: xsp show"),
    **dict.fromkeys(("load", "read", "convert"), ". Use: xsp import"),
    **dict.fromkeys(("diff",), ". Use: xsp compare"),
}


class _Commands(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print no list of commands: the help's own text has one, with arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a target, or an option of `profile`, in place of a command for `xsp profile`."""
        if args and args[0] not in self.commands and _is_of_profile(args[0]):
            args = ["profile", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; suggest one if there is none."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            from xsp.text import suggest  # noqa: PLC0415

            meant = _CALLED.get(args[0]) or suggest(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command {args[0]!r}{meant or '. See xsp --help.'}")
        return super().resolve_command(ctx, args)


def _is_of_profile(word: str) -> bool:
    if word.startswith("-"):
        option = word.partition("=")[0]
        return any(option in each.opts or option in each.secondary_opts for each in profile.params)
    return word.partition(":")[0].endswith(".py") or ":" in word.strip(":")


@click.group(
    cls=_Commands,
    help=_HELP,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="xsp")
def cli() -> None:
    """Hold the commands."""


_DOCTOR_EPILOG = """\b
Examples:
  xsp doctor
  xsp doctor --verbose                         every provider, version and setting
  xsp doctor --json | jq .disturbances
  xsp doctor --frameworks                      starts each one, to see how it computes here
  xsp doctor --peak                            measures the roof of this machine, and keeps it
"""


@cli.command(epilog=_DOCTOR_EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option(
    "--frameworks",
    is_flag=True,
    help="Import each installed framework: its threads, oneDNN, devices.",
)
@click.option("--peak", is_flag=True, help="Measure first what it computes and copies at most.")
@click.option("--verbose", "-v", is_flag=True, help="Print every provider, version and setting.")
def doctor(*, as_json: bool, frameworks: bool, peak: bool, verbose: bool) -> None:
    """Show what this machine can measure, and what disturbs it."""
    from xsp.show.cli.doctor import diagnosis, measure_peak, render, summary  # noqa: PLC0415

    if peak:
        measure_peak()
    found = diagnosis(frameworks=frameworks)
    if as_json:
        terminal.show(json.dumps(found, indent=2))
        return
    if not (verbose or frameworks or peak):
        terminal.show(summary(found, terminal.width()))
        return
    from rich.console import Console  # noqa: PLC0415

    console = Console()
    with console.capture() as drawn:
        render(found, console)
    terminal.write(drawn.get().rstrip("\n"))


for command in (
    profile,
    attach,
    energy,
    sweep,
    zoo,
    import_files,
    show,
    analyze,
    compare,
    report,
    counters,
    export,
    jaeger,
    demo,
    record,
    skill,
    mcp,
):
    cli.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit code; errors go to standard error."""
    from xsp.errors import ExportError, XspError  # noqa: PLC0415

    try:
        code = cli.main(arguments, prog_name="xsp", standalone_mode=False)
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        terminal.say(message.getvalue().rstrip("\n"))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return terminal.fail("interrupted", exit_code.INTERRUPTED)
    except ExportError as error:
        return terminal.fail(str(error), exit_code.of_export(error))
    except (XspError, OSError) as error:
        return terminal.fail(str(error), exit_code.NOT_MEASURED)
    return code if isinstance(code, int) else exit_code.OK


def main() -> NoReturn:
    """Run the command line and end the process."""
    sys.exit(run())


if __name__ == "__main__":
    main()
