"""`xsp profile`: a target and options in, the tree on the terminal and the trace in a file out."""

from __future__ import annotations

import ast
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.cli import exit_code, terminal
from xsp.cli.export import DESTINATION, check_options, deliver
from xsp.cli.option import (
    TargetCommand,
    check_usage,
    complete_target,
    model_options,
    output_option,
    span_options,
    spec_of,
    target_failures,
    timeline_option,
    usage,
)

if TYPE_CHECKING:
    from xsp.program import profile as Profiling  # noqa: N812  # the command is called profile
    from xsp.rank import Company
    from xsp.session import Settings
    from xsp.target import Ending, Spec
    from xsp.trace import Trace

_HELP = """Measure TARGET on every rung, print its tree and save its trace.

\b
TARGET is one of
  torchvision:NAME    timm:NAME    a model with random weights
  transformers:NAME   a model type (bert), a class (BertForMaskedLM), or an
                      Auto class with a type (AutoModelForCausalLM:gpt2)
  keras:NAME          of keras.applications; --framework tensorflow, torch, jax
  onnx:FILE           tf-saved-model:FOLDER    a model in a file
  jax:path.py:function                         compiled by jax.jit
  path.py:function    called again and again, without arguments, but for
                      batch and device if it has such parameters
  script.py ARGS...   run once as it is; the models that it calls are measured

A script's standard output stays its own: the tree goes to standard error.
What a target prints in a process of its own (--isolate) is not shown.
"""

_EPILOG = """\b
Examples:
  xsp profile torchvision:resnet50 --batch 8
  xsp profile timm:vit_base_patch16_224 --train -o vit-training.xsp
  xsp profile torchvision:resnet50 --levels 4 --device cuda --serialised
  xsp profile transformers:bert --levels framework --budget 60
  xsp profile transformers:AutoModelForCausalLM:gpt2 --json > gpt2.json
  xsp profile keras:ResNet50 --framework jax
  xsp profile torchvision:resnet50 --framework onnxruntime
  xsp profile onnx:model.onnx --set length=128
  xsp profile predict.py:run
  xsp profile --levels 2 train.py --epochs 3
"""


_MOST_NAMED = 4  # functions of a file that a message names
# Statements of a file that only defines.
_DEFINING = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
)

_BUDGET_S = 5.0  # more narrows intervals less than the differences of processes widen them


@click.command(cls=TargetCommand, help=_HELP, epilog=_EPILOG)
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
    help="Evaluations on each rung.  [default: over 3 s at least, until it is known to ±1 %]",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds of measuring after which it is enough; loading TARGET comes on top.  "
    "[default: 5; of a script: 20]",
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
    help="Several fresh processes, of which the deeper rungs have one each.  [default: --isolate; "
    "a script runs once, in one process]",
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
    metavar=DESTINATION,
    help="Where to take it: otlp+http://localhost:4318, NAME.perfetto.json; may be repeated.",
)
@span_options
def profile(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Measure a target."""
    from xsp.session import limited_threads  # noqa: PLC0415

    with limited_threads(options["threads"]):  # before the libraries are loaded
        return _profile(target, arguments, options)


def _profile(target: str, arguments: tuple[str, ...], options: dict[str, Any]) -> int:
    spec = spec_of(target, arguments, options)
    check_options(options, options["exports"])
    # All that can be refused is refused before anything is measured.
    check_usage(spec, options)
    settings = _settings(spec, options)
    _check_files(spec, options)
    if spec.kind == "script":
        return _profile_script(spec, settings, options)
    with ExitStack() as ending:  # the tree is there before the processes have ended
        trace = _measure(spec, settings, options, ending)
        shown = _shown(trace, options)
        try:
            saved = _save(trace, spec, options)
        finally:  # a trace that cannot be saved is shown all the same
            terminal.show(terminal.as_json(shown) if options["as_json"] else str(shown))
        if saved:
            terminal.say(saved)
        deliver(shown, options["exports"], options)
    return (
        exit_code.INTERRUPTED
        if any(p.code == "interrupted" for p in trace.problems)
        else exit_code.OK
    )


def _settings(spec: Spec, options: dict[str, Any]) -> Settings:
    from xsp.session import settings_of  # noqa: PLC0415

    chosen = {name: options[name] for name in ("runs", "budget", "statistic")}
    if chosen["budget"] is None and chosen["runs"] is None and spec.kind != "script":
        chosen["budget"] = _BUDGET_S
    return usage(lambda: settings_of(options["levels"], **chosen))


def _check_files(spec: Spec, options: dict[str, Any]) -> None:
    """Verify that the files can be written, before anything is measured.

    Raises:
        ExportError: A file cannot be written.
    """
    from xsp.machine import check_writable  # noqa: PLC0415

    exported = (Path(to) for to in options["exports"] if "://" not in to)
    for path in (_output(spec, options), *exported):
        if path is not None:
            check_writable(path)


def _measure(spec: Spec, settings: Settings, options: dict[str, Any], ending: ExitStack) -> Trace:
    from xsp.target import measure_here, measure_isolated  # noqa: PLC0415

    with target_failures(spec.target):
        if options["isolate"] is False:
            return measure_here(spec, settings)
        return measure_isolated(spec, settings, serialised=options["serialised"], ending=ending)


def _profile_script(spec: Spec, settings: Settings, options: dict[str, Any]) -> int:
    from xsp.program import profile  # noqa: PLC0415
    from xsp.rank import Company, identity  # noqa: PLC0415

    mine = identity()
    profiling = profile(
        settings.levels,
        runs=settings.runs,
        budget=options["budget"],
        statistic=settings.statistic,
        progress=None if mine is None or mine.rank == 0 else False,  # all share one terminal
        name=Path(spec.target).name,
    )
    if mine is None:
        return _ended(profiling, spec, options, *_run(profiling, spec))
    company = Company(mine)
    if mine.is_told_where:  # else no rank hears of another
        profiling.agree(company.agreement)
    with company.watching_signals():
        ending, code = _run(profiling, spec, company.script_ended)
        code = _ended_together(profiling, spec, options, ending, code, company)
    if company.terminated:
        from xsp.target import end_by_signal  # noqa: PLC0415

        end_by_signal(signal.SIGTERM)
    return code


def _run(
    profiling: Profiling, spec: Spec, ended: Callable[[], None] = lambda: None
) -> tuple[Ending, int]:
    """Run a script, and return how it ended, and xsp's exit code so far."""
    from xsp.target import Ending, run_script  # noqa: PLC0415

    ending, code = Ending(exit_code.OK), exit_code.OK
    try:
        with profiling:
            ending = usage(lambda: run_script(spec.target, spec.arguments))
            ended()
            ending.reraise()
    except KeyboardInterrupt:
        code = exit_code.INTERRUPTED
    except BaseException as error:
        if error is not ending.error:
            raise
    if ending.forked:  # the measurement belongs to the parent process
        sys.exit(ending.code)
    return ending, code


def _ended_together(  # what `_ended` needs, and the other ranks
    profiling: Profiling,
    spec: Spec,
    options: dict[str, Any],
    ending: Ending,
    code: int,
    company: Company,
) -> int:
    """Show and save the trace of all ranks where this is rank 0; else hand this rank's over."""
    from xsp.errors import MeasurementError, XspError  # noqa: PLC0415

    rank = company.identity.rank
    if why := company.apart:
        terminal.say(f"xsp: rank {rank} is measured by itself, for it finds no other ({why})")
        return _ended(profiling, spec, _for_rank(spec, options, rank), ending, code)
    account = profiling.account(company, ending.failure)
    if rank:
        try:
            company.hand_over(account)
        except (XspError, OSError) as error:  # a full disk does not end the other ranks
            terminal.say(f"xsp: what rank {rank} measured is lost: {error}")
        return _left(ending, code)

    def together() -> Trace:
        trace = company.join(account, terminal.say)
        if trace is None:
            raise MeasurementError(account.why)
        return trace

    return _ended(profiling, spec, options, ending, code, together)


def _for_rank(spec: Spec, options: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return options by which a rank's files are its own."""
    path = _output(spec, options)
    if path is None:
        return options
    return options | {"output": path.with_name(f"{path.stem}-rank{rank}{path.suffix}")}


def _ended(  # what to show and save, and how the script ended
    profiling: Profiling,
    spec: Spec,
    options: dict[str, Any],
    ending: Ending,
    code: int,
    made: Callable[[], Trace] | None = None,
) -> int:
    """Show, save and export what was measured of a script, and return the exit code."""
    from xsp.errors import ExportError, XspError  # noqa: PLC0415

    try:
        trace = profiling.trace if made is None else made()
        shown, saved = _shown(trace, options), ""
        try:
            saved = _save(trace, spec, options)
        finally:
            terminal.say(f"{shown}\n{saved}".rstrip("\n"))
        deliver(shown, options["exports"], options)
    except ExportError as error:
        code = terminal.fail(str(error), code or exit_code.of_export(error))
    except (XspError, OSError) as error:
        code = terminal.fail(
            f"{error}{_misplaced(spec)}{_functions(spec, error, ending)}",
            code or exit_code.NOT_MEASURED,
        )
    return _left(ending, code)


def _left(ending: Ending, code: int) -> int:
    """Return the exit code of a script; one that Ctrl-C ended ends this process likewise."""
    from xsp.target import end_by_signal  # noqa: PLC0415

    if isinstance(ending.error, KeyboardInterrupt):
        end_by_signal(signal.SIGINT)
    return ending.code or code


def _misplaced(spec: Spec) -> str:
    """Return a hint at the script's arguments that are options of xsp, if there are any."""
    ours = {option for param in profile.params for option in param.opts if option.startswith("-")}
    astray = [argument for argument in spec.arguments if argument in ours]
    if not astray:
        return ""
    return f" ({', '.join(astray)} went to the script: what is for xsp stands before it)"


def _functions(spec: Spec, error: Exception, ending: Ending) -> str:
    """Return how to measure a function of a script that only defines some; else an empty text."""
    from xsp.errors import MeasurementError  # noqa: PLC0415

    path = Path(spec.target)
    if ending.error or not isinstance(error, MeasurementError) or path.suffix != ".py":
        return ""
    body = ast.parse(path.read_bytes()).body
    if ast.get_docstring(ast.Module(body, [])) is not None:
        body = body[1:]
    if not all(isinstance(each, _DEFINING) for each in body):
        return ""
    defined = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    names = [f"{path}:{name}" for name in defined if not name.startswith("_")][:_MOST_NAMED]
    if not names:
        return ""
    return f". The file only defines functions: name the one to measure, {' or '.join(names)}"


def _shown(trace: Trace, options: dict[str, Any]) -> Trace:
    """Return the trace to print and export, with the timeline that the user chose."""
    return trace.as_measured() if options["timeline"] == "measured" else trace


def _output(spec: Spec, options: dict[str, Any]) -> Path | None:
    """Return the file to save the trace to; None where the spans are only printed."""
    if options["output"] is None and options["as_json"]:
        return None
    return options["output"] or Path(f"{spec.name}.xsp")


def _save(trace: Trace, spec: Spec, options: dict[str, Any]) -> str:
    """Save a trace, and return the line that says where; empty if it is not saved."""
    path = _output(spec, options)
    if path is None:
        return ""
    return terminal.saved(trace, path)
