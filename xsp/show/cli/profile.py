"""`xsp profile` measures a target, prints the tree and saves the trace."""

from __future__ import annotations

import ast
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from xsp.show.cli import exit_code, terminal
from xsp.show.cli.export import DESTINATION, check_options, deliver
from xsp.show.cli.option import (
    TargetCommand,
    check_usage,
    complete_target,
    model_options,
    output_option,
    span_options,
    spec_of,
    target_failures,
    timeline_option,
    tree_options,
    usage,
)

if TYPE_CHECKING:
    from xsp.measuring.program import profile as Profiling  # noqa: N812  # the command is called profile
    from xsp.measuring.rank import Company
    from xsp.measuring.target import Ending, Spec
    from xsp.record.session import Settings
    from xsp.trace import Trace

_HELP = """Profile a model, function or script; print the tree and save the trace.

\b
TARGET is one of
  torchvision:NAME    timm:NAME    a model with random weights
  transformers:NAME   a model type (bert), a class (BertForMaskedLM), or an
                      Auto class with a type (AutoModelForCausalLM:gpt2)
  keras:NAME          of keras.applications; --framework tensorflow, torch, jax
  onnx:FILE           tf-saved-model:FOLDER    a model in a file
  jax:path.py:function                         compiled by jax.jit
  path.py:function    xsp calls it again and again, without arguments, or with
                      batch and device if it has such parameters
  script.py ARGS...   your script runs once, unchanged

A script keeps its standard output: xsp prints the tree on standard error.
With --isolate xsp does not show what a target prints.
"""

_EPILOG = """\b
Examples:
  xsp profile torchvision:resnet50 --batch 8
  xsp profile timm:vit_base_patch16_224 --train -o vit-training.xsp
  xsp profile torchvision:resnet50 --levels 4 --device cuda --synchronous
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


_GROUPS = {
    "What": ("levels", "batch", "device", "train", "framework", "compiled", "precision", "inputs",
             "threads", "monitor", "energy"),
    "How long": ("runs", "budget", "isolate"),
    "Output": ("output", "as_json", "errors", "overhead", "warnings", "exports"),
    "Advanced": ("synchronous", "statistic", "timeline", "max_spans", "full", "help"),
}  # fmt: skip


class _Grouped(TargetCommand):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the options in groups."""
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([found for name in names if (found := records.get(name))])


@click.command(cls=_Grouped, help=_HELP, epilog=_EPILOG)
@click.argument("target", shell_complete=complete_target)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--levels",
    default="2",
    metavar="LEVELS",
    help="Deepest level: layers, ops, calls, kernels or system, or a number from 1 to 5; or "
    "several: layers,system.  [default: 2, the operators]",
)
@model_options
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps on each pass.  [default: for 3 s at least, until the latency is known to ±1 %]",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds of measuring; loading TARGET comes on top. In a script xsp records samples "
    "afterwards.  [default: 5; of a script: 20]",
)
@click.option(
    "--statistic",
    type=click.Choice(["trimmed", "median", "mean"]),
    default="trimmed",
    show_default=True,
    help="Summary of the runs; trimmed: the mean of the middle 60 %.",
)
@click.option(
    "--isolate/--no-isolate",
    default=None,
    help="Measure in three fresh processes that take turns.  [default: --isolate; a script runs "
    "once, in one process]",
)
@click.option(
    "--synchronous",
    is_flag=True,
    help="Add a pass with synchronous kernels and one thread; resolves ambiguous parents.",
)
@click.option(
    "--monitor/--no-monitor",
    default=None,
    help="Read energy and utilization.  [default: if there is a GPU or an energy counter]",
)
@click.option("--energy", is_flag=True, help="Read energy for 30 s more, and idle power.")
@click.option(
    "--serialised",
    is_flag=True,
    hidden=True,  # as earlier versions called `--synchronous`
)
@output_option("File for the trace.  [default: NAME.xsp; with --json: nowhere]")
@click.option("--json", "as_json", is_flag=True, help="Print the spans as JSON, not the tree.")
@tree_options
@timeline_option
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar=DESTINATION,
    help="Export it as well: http://localhost:4318, NAME.perfetto.json; may be repeated.",
)
@span_options
def profile(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Measure a target."""
    from xsp.record.session import limited_threads  # noqa: PLC0415

    with limited_threads(options["threads"]):  # before libraries are loaded
        return _profile(target, arguments, options)


def _profile(target: str, arguments: tuple[str, ...], options: dict[str, Any]) -> int:
    from xsp.progress import status_line  # noqa: PLC0415

    # A log of a script is the script's own until it has ended.
    with status_line(None if sys.stderr is not None and sys.stderr.isatty() else False, "starting"):
        spec, settings = _chosen(target, arguments, options)
    return _measured(spec, settings, options)


def _chosen(
    target: str, arguments: tuple[str, ...], options: dict[str, Any]
) -> tuple[Spec, Settings]:
    """Parse target and settings; refuse wrong ones before anything starts."""
    spec = spec_of(target, arguments, options)
    options["synchronous"] |= options["serialised"]
    check_options(options, options["exports"])
    check_usage(spec, options)
    from xsp.record.session import settings_of  # noqa: PLC0415

    chosen = {name: options[name] for name in ("runs", "budget", "statistic", "monitor", "energy")}
    if chosen["budget"] is None and chosen["runs"] is None and spec.kind != "script":
        chosen["budget"] = _BUDGET_S
    settings = usage(lambda: settings_of(options["levels"], **chosen))
    _check_files(spec, options)
    import xsp.measuring.program  # noqa: PLC0415  # takes a while
    import xsp.measuring.target  # noqa: F401, PLC0415

    return spec, settings


def _measured(spec: Spec, settings: Settings, options: dict[str, Any]) -> int:
    if spec.kind == "script":
        return _profile_script(spec, settings, options)
    with ExitStack() as ending:  # the tree is there before the processes have ended
        from xsp.measuring.target import measure_here, measure_isolated  # noqa: PLC0415

        with target_failures(spec.target), _terminable(_interrupt):
            if options["isolate"] is False:
                trace = measure_here(spec, settings)
            else:
                trace = measure_isolated(
                    spec, settings, synchronous=options["synchronous"], ending=ending
                )
        shown = _shown(trace, options)
        try:
            saved = _save(trace, spec, options)
        finally:  # a trace that cannot be saved is shown all the same
            terminal.show(terminal.as_json(shown) if options["as_json"] else _tree(shown, options))
        if saved:
            terminal.say(saved)
        deliver(shown, options["exports"], options)
    return (
        exit_code.INTERRUPTED
        if any(p.code == "interrupted" for p in trace.warnings)
        else exit_code.OK
    )


def _check_files(spec: Spec, options: dict[str, Any]) -> None:
    """Verify that the files can be written, before anything is measured.

    Raises:
        ExportError: A file cannot be written.
    """
    from xsp.machine import check_writable  # noqa: PLC0415

    exported = [Path(to) for to in options["exports"] if "://" not in to]
    # A folder that may be replaced was checked with the options.
    exported = [path for path in exported if not (path.suffix == ".ctf" and path.is_dir())]
    for path in (_output(spec, options), *exported):
        if path is not None:
            check_writable(path)


def _profile_script(spec: Spec, settings: Settings, options: dict[str, Any]) -> int:
    from xsp.measuring.program import profile  # noqa: PLC0415
    from xsp.measuring.rank import Company  # noqa: PLC0415
    from xsp.record.rank import identity  # noqa: PLC0415

    mine = identity()
    if (mine is None or mine.rank == 0) and (hint := _misplaced(spec)):
        terminal.say(f"xsp:{hint}")
    profiling = profile(
        options["levels"],
        runs=settings.runs,
        budget=settings.budget_s,
        statistic=settings.statistic,
        progress=None if mine is None or mine.rank == 0 else False,  # all share one terminal
        name=Path(spec.target).name,
        monitor=settings.monitor or settings.energy or None
        if settings.monitor is not False
        else False,
    )
    if mine is None:
        with _terminable(lambda: sys.exit(128 + signal.SIGTERM)):
            ended = _run(profiling, spec)
        return _ended(profiling, spec, options, *ended)
    company = Company(mine)
    if mine.is_told_where:  # else no rank hears of another
        profiling._among_ranks(company.identity.seed)
    with company.watching_signals():
        ending, code = _run(profiling, spec, company.script_ended)
        code = _ended_together(profiling, spec, options, ending, code, company)
    if company.terminated:
        from xsp.measuring.target import end_by_signal  # noqa: PLC0415

        end_by_signal(signal.SIGTERM)
    return code


def _interrupt() -> None:
    """Do as on Ctrl-C, also where the shell has this process ignore it."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, None)


@contextmanager
def _terminable(leave: Callable[[], object]) -> Iterator[None]:
    """Call a function on SIGTERM, so that what was measured by then is there all the same."""

    def handle(number: int, frame: FrameType | None) -> None:
        leave()

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:  # ignored, or the business of whoever calls this
        yield
        return
    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(
    profiling: Profiling, spec: Spec, ended: Callable[[], None] = lambda: None
) -> tuple[Ending, int]:
    """Run a script, and return how it ended, and xsp's exit code so far."""
    from xsp.measuring.target import Ending, run_script  # noqa: PLC0415

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
        # Options by which a rank's files are its own.
        path = _output(spec, options)
        if path is None:
            for_rank = options
        else:
            for_rank = options | {"output": path.with_name(f"{path.stem}-rank{rank}{path.suffix}")}
        return _ended(profiling, spec, for_rank, ending, code)
    account = profiling._account(company, ending.failure)
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


def _ended(  # what to show and save, and how the script ended
    profiling: Profiling,
    spec: Spec,
    options: dict[str, Any],
    ending: Ending,
    code: int,
    made: Callable[[], Trace] | None = None,
) -> int:
    """Show, save and export what was measured of a script, and return the exit code."""
    from xsp.errors import ExportError, MeasurementError, XspError  # noqa: PLC0415

    try:
        trace = profiling.trace if made is None else made()
        called = all(warning.code != "nothing-called" for warning in trace.warnings)
        if not called and (functions := _functions(spec, ending)):
            raise MeasurementError(f"No model call was found{functions}{_misplaced(spec)}")
        shown, saved = _shown(trace, options), ""
        try:
            saved = _save(trace, spec, options)
        finally:
            terminal.say(f"{_tree(shown, options)}\n{saved}".rstrip("\n"))
        deliver(shown, options["exports"], options)
    except ExportError as error:
        code = terminal.fail(str(error), code or exit_code.of_export(error))
    except (XspError, OSError) as error:
        code = terminal.fail(
            f"{error}{_misplaced(spec)}",
            code or exit_code.NOT_MEASURED,
        )
    return _left(ending, code)


def _left(ending: Ending, code: int) -> int:
    """Return the exit code of a script; one that Ctrl-C ended ends this process likewise."""
    from xsp.measuring.target import end_by_signal  # noqa: PLC0415

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


def _functions(spec: Spec, ending: Ending) -> str:
    """Return how to measure a function of a script that only defines some; else an empty text."""
    path = Path(spec.target)
    if ending.error or path.suffix != ".py":
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
    return f". The file only defines functions. Name one: xsp profile {' or '.join(names)}"


def _shown(trace: Trace, options: dict[str, Any]) -> Trace:
    """Return the trace to print and export, with the timeline that the user chose."""
    return trace.as_measured() if options["timeline"] == "measured" else trace


def _tree(trace: Trace, options: dict[str, Any]) -> str:
    """Return the tree of a trace, with the columns that the user chose."""
    return trace.tree(**{name: options[name] for name in ("errors", "overhead", "warnings")})


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
