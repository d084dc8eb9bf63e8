"""The command line: `xsp profile`, `xsp show`, `xsp doctor`, and what stands in `export`.

Only click is imported at the top, so that help and completion come at once.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from xsp.cli import export as command
from xsp.cli import terminal
from xsp.cli.option import (
    TargetCommand,
    TargetFailed,
    check_usage,
    complete_target,
    model_options,
    output_option,
    span_options,
    target_failures,
    timeline_option,
    usage,
)

if TYPE_CHECKING:
    from xsp.errors import ExportError
    from xsp.session import Settings
    from xsp.target import Spec
    from xsp.trace import Trace

OK, TARGET_FAILED, USAGE, NOT_MEASURED, INTERRUPTED = 0, TargetFailed.exit_code, 2, 3, 130

_HELP = """\b
Profile machine-learning models across the stack, without the profiler in the numbers.

\b
  xsp profile torchvision:resnet50      measure, print the tree, save the trace
  xsp show resnet50.xsp                 print a saved trace again
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
  130  interrupted; what was complete by then is kept

\b
Shell completion, for bash (zsh and fish alike), in ~/.bashrc:
  eval "$(_XSP_COMPLETE=bash_source xsp)"
"""


class _Commands(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Leave them out: the text of the help lists them, each with what may follow it."""


@click.group(
    cls=_Commands,
    help=_HELP,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="xsp")
def cli() -> None:
    """Hold the commands."""


_PROFILE_HELP = """Measure TARGET on every rung, print its tree and save its trace.

\b
TARGET is one of
  torchvision:NAME    timm:NAME    a model with random weights
  transformers:NAME   a model type (bert), a class (BertForMaskedLM), or an
                      Auto class with a type (AutoModelForCausalLM:gpt2)
  path.py:function    called again and again, without arguments, but for
                      batch and device if it has such parameters
  script.py ARGS...   run once as it is; the models that it calls are measured

A script's standard output stays its own: the tree goes to standard error.
What a target prints in a process of its own (--isolate) is not shown.
"""

_PROFILE_EPILOG = """\b
Examples:
  xsp profile torchvision:resnet50 --batch 8
  xsp profile timm:vit_base_patch16_224 --train -o vit-training.xsp
  xsp profile torchvision:resnet50 --levels 4 --device cuda --serialised
  xsp profile transformers:bert --levels framework --budget 60
  xsp profile transformers:AutoModelForCausalLM:gpt2 --json > gpt2.json
  xsp profile predict.py:run
  xsp profile --levels 2 train.py --epochs 3
"""

_SHOW_EPILOG = """\b
Examples:
  xsp show resnet50.xsp
  xsp show resnet50.xsp --all | less
  xsp show resnet50.xsp --json | jq '.spans[] | select(.kind == "layer") | .path'
"""

_DOCTOR_EPILOG = """\b
Examples:
  xsp doctor
  xsp doctor --json | jq .disturbances
"""


@cli.command(cls=TargetCommand, help=_PROFILE_HELP, epilog=_PROFILE_EPILOG)
@click.argument("target", shell_complete=complete_target)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--levels",
    default="3",
    show_default=True,
    metavar="LEVELS",
    help="Deepest level, by number or name; or several: model,framework,kernel.",
)
@model_options
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Evaluations on each rung.  [default: until it is known to ±1 %]",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds of measuring after which it is enough; starting a process for each rung comes "
    "on top.  [default: 20]",
)
@click.option(
    "--statistic",
    type=click.Choice(["trimmed", "median", "mean", "min"]),
    default="trimmed",
    show_default=True,
    help="How runs are summarised; trimmed: the mean of the middle 60 %.",
)
@click.option(
    "--isolate/--no-isolate",
    default=None,
    help="A fresh process for each rung.  [default: --isolate; a script runs once, in one process]",
)
@click.option(
    "--serialised",
    is_flag=True,
    help="A process more, in which the host waits for each kernel and libraries use one thread: "
    "latencies of their own, and what caused what.  [default: only where that is in doubt]",
)
@output_option("Where to save the trace.  [default: NAME.xsp; with --json: nowhere]")
@click.option("--json", "as_json", is_flag=True, help="Print the spans as JSON, not the tree.")
@timeline_option
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar=command.DESTINATION,
    help="Where to take it: otlp+http://localhost:4318, NAME.perfetto.json; may be repeated.",
)
@span_options
def profile(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Measure a target."""
    from xsp.session import limited_threads  # noqa: PLC0415

    with limited_threads(options["threads"]):  # before anything loads the libraries
        return _profile(target, arguments, options)


def _profile(target: str, arguments: tuple[str, ...], options: dict[str, Any]) -> int:
    from xsp.target import Spec  # noqa: PLC0415

    spec = Spec(target, arguments, options["batch"], options["device"], train=options["train"])
    settings = _settings(options)
    command.check_options(options, options["exports"])
    check_usage(spec, options)
    _check_files(spec, options)
    if spec.kind == "script":
        return _profile_script(spec, settings, options)
    trace = _measure(spec, settings, options)
    shown = _shown(trace, options)
    try:
        saved = _save(trace, spec, options)
    finally:  # what cannot be saved is shown all the same
        terminal.show(_as_json(shown) if options["as_json"] else str(shown))
    if saved:
        terminal.say(saved)
    command.deliver(shown, options["exports"], options)
    return INTERRUPTED if any(p.code == "interrupted" for p in trace.problems) else OK


@cli.command(epilog=_SHOW_EPILOG)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="About how many rows to print.",
)
@click.option("--all", "everything", is_flag=True, help="Print every span.")
@click.option("--json", "as_json", is_flag=True, help="Print metadata and spans as JSON.")
def show(file: Path, rows: int, *, everything: bool, as_json: bool) -> None:
    """Print the tree of the trace in FILE."""
    from xsp.trace import load  # noqa: PLC0415

    trace = load(file)
    if as_json:
        terminal.show(_as_json(trace))
    elif everything:
        terminal.show(trace.tree(rows=None, smallest=0.0))
    else:
        terminal.show(trace.tree(rows=rows))


@cli.command(epilog=_DOCTOR_EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(*, as_json: bool) -> None:
    """Say which levels this machine has, why others are missing, and what disturbs it."""
    from xsp.cli.doctor import diagnosis, render  # noqa: PLC0415

    found = diagnosis()
    if as_json:
        terminal.show(json.dumps(found, indent=2))
        return
    from rich.console import Console  # noqa: PLC0415

    console = Console()
    with console.capture() as drawn:
        render(found, console)
    terminal.write(drawn.get().rstrip("\n"))


cli.add_command(command.export)
cli.add_command(command.jaeger)
cli.add_command(command.record)


def run(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit code; errors are said on standard error."""
    from xsp.errors import ExportError, XspError  # noqa: PLC0415

    try:
        code = cli.main(arguments, prog_name="xsp", standalone_mode=False)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        terminal.say(said.getvalue().rstrip("\n"))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED)
    except ExportError as error:
        return _fail(str(error), _code_of(error))
    except (XspError, OSError) as error:
        return _fail(str(error), NOT_MEASURED)
    return code if isinstance(code, int) else OK


def _code_of(error: ExportError) -> int:
    """Return the exit code of an export that failed: a file, or spans that did not arrive."""
    return NOT_MEASURED if error.delivery is None else command.NOT_EXPORTED


def main() -> NoReturn:
    """Run the command line and end the process."""
    sys.exit(run())


def _settings(options: dict[str, Any]) -> Settings:
    from xsp.session import settings_of  # noqa: PLC0415

    chosen = {name: options[name] for name in ("runs", "budget", "statistic")}
    return usage(lambda: settings_of(options["levels"], **chosen))


def _check_files(spec: Spec, options: dict[str, Any]) -> None:
    """Verify that what is to be written can be, before anything is measured for it.

    Raises:
        ExportError: It cannot.
    """
    from xsp.atomic_file import check_writable  # noqa: PLC0415

    exported = (Path(to) for to in options["exports"] if "://" not in to)
    for path in (_output(spec, options), *exported):
        if path is not None:
            check_writable(path)


def _measure(spec: Spec, settings: Settings, options: dict[str, Any]) -> Trace:
    from xsp.target import measure_here, measure_isolated  # noqa: PLC0415

    with target_failures(spec.target):
        if options["isolate"] is False:
            return measure_here(spec, settings)
        return measure_isolated(spec, settings, serialised=options["serialised"])


def _profile_script(spec: Spec, settings: Settings, options: dict[str, Any]) -> int:
    from xsp.errors import ExportError, XspError  # noqa: PLC0415
    from xsp.measurement import profile  # noqa: PLC0415
    from xsp.target import Ending, end_by_interrupt, run_script  # noqa: PLC0415

    profiling = profile(
        settings.levels,
        runs=settings.runs,
        budget=settings.budget_s,
        statistic=settings.statistic,
        progress=False,
    )
    ending, code = Ending(OK), OK
    try:
        with profiling:
            ending = usage(lambda: run_script(spec.target, spec.arguments))
            ending.reraise()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException as error:
        if error is not ending.error:
            raise
    if ending.forked:  # the measurement is the parent's
        sys.exit(ending.code)
    try:
        shown, saved = _shown(profiling.trace, options), ""
        try:
            saved = _save(profiling.trace, spec, options)
        finally:
            terminal.say(f"{shown}\n{saved}".rstrip("\n"))
        command.deliver(shown, options["exports"], options)
    except ExportError as error:
        code = _fail(str(error), code or _code_of(error))
    except (XspError, OSError) as error:
        code = _fail(f"{error}{_misplaced(spec)}", code or NOT_MEASURED)
    if isinstance(ending.error, KeyboardInterrupt):
        end_by_interrupt()
    return ending.code or code


def _misplaced(spec: Spec) -> str:
    """Return which of a script's arguments may have been meant for xsp."""
    ours = {option for param in profile.params for option in param.opts if option.startswith("-")}
    astray = [argument for argument in spec.arguments if argument in ours]
    if not astray:
        return ""
    return f" ({', '.join(astray)} went to the script: what is for xsp stands before it)"


def _as_json(trace: Trace) -> str:
    metadata = json.dumps(trace.metadata, default=dict)
    text = f'{{"metadata": {metadata}, "spans": {trace.spans.write_json()}}}'
    if text.isprintable():
        return text
    # JSON lets C1 control characters stand, and terminals obey them.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _shown(trace: Trace, options: dict[str, Any]) -> Trace:
    """Return what is printed and exported of a trace; its file has both timelines."""
    return trace.as_measured() if options["timeline"] == "measured" else trace


def _output(spec: Spec, options: dict[str, Any]) -> Path | None:
    """Return the file to save to; None where the spans are only printed."""
    if options["output"] is None and options["as_json"]:
        return None
    return options["output"] or Path(f"{spec.name}.xsp")


def _save(trace: Trace, spec: Spec, options: dict[str, Any]) -> str:
    """Save a trace before anything else can go wrong, and return what to say of it."""
    path = _output(spec, options)
    if path is None:
        return ""
    said = "it took the place of an older" if path.exists() else "saved to"
    saved = trace.save(path)
    return f"{said} {saved}; print it again with: xsp show {saved}"


def _fail(message: str, code: int) -> int:
    terminal.say(f"xsp: {message}")
    return code


if __name__ == "__main__":
    main()
