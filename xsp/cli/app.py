"""The command `xsp`: a command line in, the exit code of the command that it names out.

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

from xsp.cli import exit_code, terminal
from xsp.cli.answer import analyze, compare, report, show
from xsp.cli.export import export, jaeger
from xsp.cli.profile import profile
from xsp.cli.reading import import_files
from xsp.cli.record import record
from xsp.cli.sweep import sweep
from xsp.cli.zoo import zoo

_HELP = """\b
Profile machine-learning models across the stack, without the profiler in the numbers.

\b
  xsp profile torchvision:resnet50      measure, print the tree, save the trace
  xsp sweep torchvision:resnet50        which batch size is best; threads, precision, …
  xsp zoo run zoo.toml                  many models, one after the other, and one table
  xsp import trace.json.gz              what other tools recorded, the same way
  xsp show resnet50.xsp                 print a saved trace again
  xsp analyze resnet50.xsp              what it can answer, and each answer as a table
  xsp report resnet50.xsp               one HTML page with all of it, to look at in a browser
  xsp compare before.xsp after.xsp      what became slower, and whether that is chance
  xsp export resnet50.xsp               to Jaeger, any OTLP endpoint, or another file format
  xsp jaeger                            start a Jaeger on this machine
  xsp doctor                            what this machine can measure, and how well
  xsp record torchvision:resnet50       keep the raw records, for tests of xsp itself
"""

_EPILOG = """\b
Exit codes:
    0  done
    1  the target raised an exception (a script: its own exit code)
    2  wrong usage, or no such target
    3  it could not be measured, or a file could not be read or written
    4  not every span could be exported; what is missing was counted and kept
    5  xsp compare: a condition of --fail-if holds, and that is no chance
  130  interrupted; what was complete by then is kept

\b
Shell completion, for bash (zsh and fish alike), in ~/.bashrc:
  eval "$(_XSP_COMPLETE=bash_source xsp)"
"""


class _Commands(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print no list of commands: the help's own text has one, with arguments."""


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
def doctor(*, as_json: bool, frameworks: bool, peak: bool) -> None:
    """Say which levels this machine has, why others are missing, and what disturbs it."""
    from xsp.cli.doctor import diagnosis, measure_peak, render  # noqa: PLC0415

    if peak:
        measure_peak()
    found = diagnosis(frameworks=frameworks)
    if as_json:
        terminal.show(json.dumps(found, indent=2))
        return
    from rich.console import Console  # noqa: PLC0415

    console = Console()
    with console.capture() as drawn:
        render(found, console)
    terminal.write(drawn.get().rstrip("\n"))


for command in (
    profile,
    sweep,
    zoo,
    import_files,
    show,
    analyze,
    compare,
    report,
    export,
    jaeger,
    record,
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
